"""The modules that a folder of sentence-transformers may have after its encoder, read from their own folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from toutates.backends.text.documents import Document, read_document
from toutates.backends.text.steps import (
    ACTIVATIONS,
    POOLING_MODES,
    TOKENS,
    VECTORS,
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    SparsePooling,
    Step,
)
from toutates.backends.text.weights import read_weights
from toutates.system.errors import ConfigurationError, ModelLoadError

__all__ = ["MODULES", "Declared", "ModuleKind", "Read", "leaf_of", "read_module"]

#: What sentence-transformers' own types begin with, of both generations.
_NAMESPACES: Final = ("sentence_transformers.",)
_NAMES: Final = (TOKENS, VECTORS)
_OLD_POOLING: Final = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
)


@dataclass(frozen=True, slots=True)
class Read:
    """What a module comes to.

    Attributes:
        step: what it does; None for nothing.
        score_tokens: see ``TextFolder``.
        skip_tokens: see ``TextFolder``.
        masks_tokens: whether it says which tokens' vectors a multi-vector model has.
    """

    step: Step | None = None
    score_tokens: tuple[int, int | None] | None = None
    skip_tokens: tuple[str, ...] = ()
    masks_tokens: bool = False


class Declared:
    """All modules after the encoder.

    Args:
        modules: in their order.
    """

    def __init__(self, modules: Sequence[Read]) -> None:
        self.steps: tuple[Step, ...] = tuple(one.step for one in modules if one.step is not None)
        self.score_tokens = next((one.score_tokens for one in modules if one.score_tokens is not None), None)
        self.skip_tokens = next((one.skip_tokens for one in modules if one.skip_tokens), ())
        self.has_token_mask = any(one.masks_tokens for one in modules)


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """A type of module.

    Attributes:
        read: reads one from its folder; None for a type that is not served.
        is_encoder: whether it comes first, and makes vectors of tokens.
    """

    read: Callable[[Path, Document | None], Read] | None = None
    is_encoder: bool = False


def leaf_of(dotted: str, source: Path, key: str) -> str:
    """The last component of a module's type, by which types of both generations are the same.

    Raises:
        ConfigurationError: it is code that comes with the model, or a type that is not served.
    """
    leaf = dotted.rpartition(".")[2]
    if not dotted.startswith(_NAMESPACES):
        raise ConfigurationError(
            "is code of the model's own, which this server does not run",
            source=source,
            key=key,
            value=dotted,
            remedy="serve the model as a Python model",
        )
    if leaf not in MODULES:
        known = ", ".join(MODULES)
        raise ConfigurationError(
            "is a module that this server does not compute",
            source=source,
            key=key,
            value=dotted,
            remedy=f"serve it as a Python model; served are {known}",
        )
    return leaf


def read_module(directory: Path, leaf: str, kwargs: Sequence[str]) -> Read:
    """Read one module. Blocks.

    Args:
        directory: of the module.
        leaf: of ``MODULES``, no encoder.
        kwargs: names of arguments of a call that the module is given.

    Raises:
        ConfigurationError: its settings cannot be followed.
        ModelLoadError: its weights cannot be read.
    """
    read = MODULES[leaf].read
    if read is None:
        raise ModelLoadError(f"modules.json has {leaf} in a place where it cannot be")
    if any(name != "task" for name in kwargs):
        raise ModelLoadError(f"modules.json gives {leaf} the arguments {', '.join(kwargs)}, which are not known here")
    return read(directory, read_document(directory / "config.json"))


def _needed(directory: Path, config: Document | None) -> Document:
    if config is None:
        raise ModelLoadError(f"unable to find '{directory / 'config.json'}'; copy the whole model folder")
    return config


def _pooling(directory: Path, config: Document | None) -> Read:
    found = _needed(directory, config)
    found.pass_over("embedding_dimension", "word_embedding_dimension")
    modes = found.texts("pooling_mode")
    old = [mode for key, mode in _OLD_POOLING.items() if found.flag(key, False)]
    chosen = modes or old or ["mean"]
    for mode in chosen:
        if mode not in POOLING_MODES:
            raise found.refused("pooling_mode", f"has no mode {mode!r}", f"one of {', '.join(POOLING_MODES)}")
    with_prompt = found.flag("include_prompt", True)
    found.refuse_rest()
    return Read(Pooling(tuple(chosen), with_prompt))


def _normalize(directory: Path, config: Document | None) -> Read:
    if config is None:  # git keeps no empty folder
        return Read(Normalize())
    source, target = _name(config, "module_input_name", VECTORS), _name(config, "module_output_name", "")
    config.refuse_rest()
    if target not in ("", source):
        raise config.refused("module_output_name", "is another than module_input_name", "remove it")
    return Read(Normalize(source))


def _dense(directory: Path, config: Document | None) -> Read:
    found = _needed(directory, config)
    inputs, outputs = found.integer("in_features", 1), found.integer("out_features", 1)
    if inputs is None or outputs is None:
        raise found.refused("in_features", "and out_features are needed", "copy the model's own file")
    with_bias = found.flag("bias", True)
    dotted = found.text("activation_function", "torch.nn.modules.activation.Tanh")
    leaf = dotted.rpartition(".")[2]
    if not dotted.startswith("torch.") or leaf not in ACTIVATIONS:
        raise found.refused("activation_function", "is not known to this server", f"one of {', '.join(ACTIVATIONS)}")
    source = _name(found, "module_input_name", VECTORS)
    target = _name(found, "module_output_name", "") or source
    adds = found.flag("use_residual", False)
    found.refuse_rest()
    projects = adds and inputs != outputs
    names = ["linear.weight", *["linear.bias"] * with_bias, *["residual.weight"] * projects]
    weights = read_weights(directory, names)
    if weights["linear.weight"].shape != (outputs, inputs):
        raise ModelLoadError(
            f"'{directory}': linear.weight has the shape {list(weights['linear.weight'].shape)}, and config.json says "
            f"[{outputs}, {inputs}]"
        )
    return Read(
        Dense(
            weight=weights["linear.weight"].T.copy(),
            bias=weights.get("linear.bias"),
            activation=ACTIVATIONS[leaf],
            source=source,
            target=target,
            residual=weights["residual.weight"].T.copy() if projects else None,
            adds_input=adds and not projects,
        )
    )


def _name(config: Document, key: str, default: str) -> str:
    name = config.text(key, default)
    if name and name not in _NAMES:
        raise config.refused(key, "is no tensor that this server has", f"one of {', '.join(_NAMES)}")
    return name


def _layer_norm(directory: Path, config: Document | None) -> Read:
    found = _needed(directory, config)
    dimension = found.integer("dimension", 1)
    found.refuse_rest()
    weights = read_weights(directory, ["norm.weight", "norm.bias"])
    if weights["norm.weight"].shape != (dimension,):
        raise ModelLoadError(f"'{directory}': norm.weight has not the {dimension} values that config.json says")
    return Read(LayerNorm(weights["norm.weight"], weights["norm.bias"]))


def _dropout(directory: Path, config: Document | None) -> Read:
    return Read()  # of training alone


def _splade(directory: Path, config: Document | None) -> Read:
    if config is None:
        return Read(SparsePooling())
    mode = config.text("pooling_strategy", "max")
    activation = config.text("activation_function", "relu")
    config.pass_over("word_embedding_dimension", "embedding_dimension", "chunk_size")
    config.refuse_rest()
    if mode not in ("max", "sum"):
        raise config.refused("pooling_strategy", "is not known", "max or sum")
    if activation not in ("relu", "log1p_relu"):
        raise config.refused("activation_function", "is not known", "relu or log1p_relu")
    return Read(SparsePooling(mode, activation == "log1p_relu"))


def _token_mask(directory: Path, config: Document | None) -> Read:
    if config is None:
        return Read(masks_tokens=True)
    words = tuple(config.texts("skiplist_words"))
    tasks = config.texts("skiplist_tasks") or ["document"]
    if words and tasks != ["document"]:
        raise config.refused("skiplist_tasks", "names other tasks than document", "write ['document']")
    config.refuse_rest()  # keep_only_token_ids is of images
    return Read(skip_tokens=words, masks_tokens=True)


def _logit_score(directory: Path, config: Document | None) -> Read:
    found = _needed(directory, config)
    yes, no = found.integer("true_token_id"), found.integer("false_token_id")
    if yes is None:
        raise found.refused("true_token_id", "is needed", "copy the model's own file")
    found.pass_over("module_input_name")
    found.refuse_rest()
    return Read(score_tokens=(yes, no))


#: By the last component of their type.
MODULES: Final[Mapping[str, ModuleKind]] = MappingProxyType(
    {
        "Transformer": ModuleKind(is_encoder=True),
        "MLMTransformer": ModuleKind(is_encoder=True),
        "StaticEmbedding": ModuleKind(is_encoder=True),
        "Pooling": ModuleKind(_pooling),
        "Dense": ModuleKind(_dense),
        "Normalize": ModuleKind(_normalize),
        "LayerNorm": ModuleKind(_layer_norm),
        "Dropout": ModuleKind(_dropout),
        "SpladePooling": ModuleKind(_splade),
        "MultiVectorMask": ModuleKind(_token_mask),
        "LogitScore": ModuleKind(_logit_score),
    }
)
