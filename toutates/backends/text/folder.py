"""Reads what a model's folder says: which graph, tokenizer and modules it has, and what these are set to.

Both generations of sentence-transformers' files are read, folders of cross-encoders and classifiers, and a graph with a
tokenizer alone. Everything that a folder declares is acted on, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from toutates.backends.text.documents import Document, read_document, read_json
from toutates.backends.text.interface import Task, VectorForm
from toutates.backends.text.modules import MODULES, Declared, leaf_of, read_module
from toutates.backends.text.steps import ACTIVATIONS, Normalize, Pooling, SparsePooling, Step
from toutates.system.errors import ConfigurationError, ModelLoadError

__all__ = ["TextFolder", "read_folder"]

#: Where a graph may be, in this order, unless the configuration names it.
GRAPHS: Final = ("model.onnx", "onnx/model.onnx")
_MODULES: Final = "modules.json"
_TRANSFORMER_FILES: Final = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
#: Architectures whose positions begin behind the id of the padding.
_SHIFTED: Final = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer"})
#: A limit above it is a placeholder for none.
_SANE_TOKENS: Final = 1_000_000
#: Tokens of a text of a model that says of no limit.
_DEFAULT_TOKENS: Final = 512
#: Tokens of a text of a model that is a table, and has no limit by itself.
_TABLE_TOKENS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TextFolder:
    """What a folder says.

    Attributes:
        path: of the folder.
        transformer: the directory of the encoder's own files; the folder itself, mostly.
        graph: of ONNX; None for a table of vectors.
        task, form: see ``TextInfo``.
        steps: what follows the encoder.
        max_tokens: of a text.
        lower: whether texts are put into lower case first.
        prompts, default_prompt, similarity, labels: see ``TextInfo``.
        activation: what becomes of logits, by the names of ``ACTIVATIONS``.
        exclusive: whether labels exclude each other.
        dimensions: that vectors are cut to; None for all.
        pad_id: of the token that texts are padded with.
        pad_left: whether padding comes first.
        truncate_left: whether the beginning of a long text is cut off.
        special: whether texts get special tokens.
        score_tokens: for language models that score: the tokens for yes and no; None for others.
        skip_tokens: strings of tokens whose vectors a document leaves out.
        query_tokens: tokens of a query, if not ``max_tokens``.
        model_type: of config.json.
        vocabulary: tokens that the encoder has vectors for; None where config.json does not say.
        declares_pooling: whether the folder, and not a default, says how tokens are pooled.
    """

    path: Path
    transformer: Path
    graph: Path | None
    task: Task
    form: VectorForm
    steps: tuple[Step, ...]
    max_tokens: int
    lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_prompt: str = ""
    similarity: str = "cosine"
    labels: tuple[str, ...] = ()
    activation: str = "Identity"
    exclusive: bool = True
    dimensions: int | None = None
    pad_id: int = 0
    pad_left: bool = False
    truncate_left: bool = False
    special: bool = True
    score_tokens: tuple[int, int | None] | None = None
    skip_tokens: tuple[str, ...] = ()
    query_tokens: int | None = None
    model_type: str = ""
    declares_pooling: bool = False
    vocabulary: int | None = None

    @property
    def pooling(self) -> str:
        """Names of the pooling modes, joined by ``+``; "" for none."""
        return "+".join("+".join(step.modes) for step in self.steps if isinstance(step, Pooling))

    @property
    def normalizes(self) -> bool:
        """Whether the last step normalizes."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)


def read_folder(path: Path, filename: str = "") -> TextFolder:
    """Read a model's folder, but not its graph. Blocks.

    Args:
        path: the folder.
        filename: of the graph, in the folder; "" for the first of ``GRAPHS`` that is there.

    Raises:
        ConfigurationError: a file cannot be read, or declares what this server does not do.
        ModelLoadError: a file is missing.
    """
    modules = _modules(path)
    encoder = modules[0] if modules else None
    transformer = path / encoder.path if encoder is not None else path
    if encoder is not None and encoder.leaf == "StaticEmbedding":
        return _read_table(path, transformer, modules)
    config = read_document(transformer / "config.json")
    if config is None:
        raise ModelLoadError(f"unable to find '{transformer / 'config.json'}'; copy the whole model folder")
    settings = _Transformer.read(transformer)
    tokens = read_document(transformer / "tokenizer_config.json")
    own = read_document(path / "config_sentence_transformers.json")
    declared = Declared([read_module(path / one.path, one.leaf, one.kwargs) for one in modules[1:]])
    if declared.score_tokens is not None and settings.takes_messages:
        raise ModelLoadError("the model scores texts in a template of a conversation, which this server does not fill")
    task, form = _task(config, own, declared, settings)
    steps = declared.steps
    if not modules and task is Task.EMBED:
        causal = any(name.endswith("ForCausalLM") for name in _architectures(config))
        steps = (Pooling(("lasttoken" if causal else "mean",)),)
    labels, activation, exclusive = _labels(config, task)
    prompts, default_prompt, similarity, dimensions = _model_settings(own)
    pad_id = config.integer("pad_token_id") or 0
    padding_side = tokens.text("padding_side", "right") if tokens is not None else "right"
    truncation_side = tokens.text("truncation_side", "right") if tokens is not None else "right"
    return TextFolder(
        path=path,
        transformer=transformer,
        graph=_graph(path, transformer, filename),
        task=task,
        form=form,
        steps=steps,
        max_tokens=_max_tokens(settings, tokens, config),
        lower=settings.lower,
        prompts=prompts,
        default_prompt=default_prompt,
        similarity=similarity,
        labels=labels,
        activation=activation,
        exclusive=exclusive,
        dimensions=dimensions,
        pad_id=pad_id,
        pad_left=padding_side == "left" or declared.score_tokens is not None,
        truncate_left=truncation_side == "left",
        score_tokens=declared.score_tokens,
        skip_tokens=declared.skip_tokens,
        query_tokens=settings.query_tokens,
        model_type=config.text("model_type"),
        declares_pooling=bool(modules),
        vocabulary=config.integer("vocab_size", 1),
    )


# --- modules.json ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Module:
    """An entry of modules.json."""

    leaf: str
    path: str
    kwargs: tuple[str, ...]


def _modules(path: Path) -> list[_Module]:
    source = path / _MODULES
    entries = read_json(source)
    if entries is None:
        return []
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError("is no list of modules", source=source, remedy="copy the model's own file")
    modules = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise ConfigurationError(
                "has no type", source=source, key=f"[{number}]", remedy="copy the model's own file"
            )
        folder = entry.get("path") or ""
        if not isinstance(folder, str) or Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise ConfigurationError(
                "is not inside of the folder", source=source, key=f"[{number}].path", value=folder, remedy="mend it"
            )
        leaf = leaf_of(entry["type"], source, f"[{number}].type")
        modules.append(_Module(leaf, folder, tuple(entry.get("kwargs") or ())))
    encoders = [one.leaf for one in modules if MODULES[one.leaf].is_encoder]
    if not MODULES[modules[0].leaf].is_encoder or len(encoders) > 1:
        raise ConfigurationError(
            f"does not begin with one encoder, but has {', '.join(one.leaf for one in modules)}",
            source=source,
            remedy="serve the model with another backend",
        )
    return modules


# --- the encoder's own settings --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Transformer:
    """Settings of the Transformer module.

    Attributes:
        max_tokens: None where it says nothing.
        lower: whether texts are put into lower case.
        query_tokens, document_tokens: of multi-vector models.
        task: of the newer files; "" in older ones.
        takes_messages: whether texts are put into a template of a conversation.
    """

    max_tokens: int | None = None
    lower: bool = False
    query_tokens: int | None = None
    document_tokens: int | None = None
    task: str = ""
    takes_messages: bool = False

    @classmethod
    def read(cls, directory: Path) -> _Transformer:
        found = next(filter(None, (read_document(directory / name) for name in _TRANSFORMER_FILES)), None)
        if found is None:
            return cls()
        own = cls(
            max_tokens=found.integer("max_seq_length", 1),
            lower=found.flag("do_lower_case", False),
            query_tokens=found.integer("query_length", 1),
            document_tokens=found.integer("document_length", 1),
            task=found.text("transformer_task"),
        )
        # How PyTorch loads and runs the weights, which are a graph here.
        found.pass_over("model_args", "config_args", "model_name_or_path", "backend", "unpad_inputs", "cache_dir")
        found.pass_over("module_output_name", "track_media_counts", "pack_inputs")
        modalities = found.section("modality_config")
        if modalities is not None and "text" not in modalities.values:
            raise found.refused("modality_config", "does not say how text is computed", "serve a model of text")
        own = replace(own, takes_messages=modalities is not None and "message" in modalities.values)
        limit = _processing(found)
        found.refuse_rest()
        if limit is not None and own.max_tokens is None:
            return replace(own, max_tokens=limit)
        return own


def _processing(found: Document) -> int | None:
    """What ``processing_kwargs`` and ``tokenizer_args`` ask for; returns a limit of tokens."""
    limit = None
    for key in ("processing_kwargs", "processor_kwargs", "tokenizer_args"):
        section = found.section(key)
        if section is None:
            continue
        for name in ("text", "common"):
            inner = section.section(name)
            if inner is not None:
                limit = inner.integer("max_length", 1) or limit
                inner.pass_over("padding", "truncation", "return_tensors", "pad_to_multiple_of")
                inner.refuse_rest()
        limit = section.integer("model_max_length", 1) or limit
        section.pass_over("use_fast", "trust_remote_code", "padding", "truncation", "image", "audio", "video")
        section.refuse_rest()
    return limit


def _max_tokens(settings: _Transformer, tokens: Document | None, config: Document) -> int:
    """The limit of a text: the first of the files that says a sane one."""
    if settings.document_tokens or settings.max_tokens:
        return settings.document_tokens or settings.max_tokens or 1
    if tokens is not None:
        found = tokens.values.get("model_max_length")
        if isinstance(found, (int, float)) and 1 <= found < _SANE_TOKENS:
            return int(found)
    positions = config.integer("max_position_embeddings", 1)
    if positions is None:
        return _DEFAULT_TOKENS
    if config.text("model_type") in _SHIFTED:
        positions -= (config.integer("pad_token_id") or 0) + 1
    return max(1, positions)


# --- what the model is -----------------------------------------------------------------------------------------------


def _architectures(config: Document) -> list[str]:
    return config.texts("architectures")


def _task(
    config: Document, own: Document | None, declared: Declared, settings: _Transformer
) -> tuple[Task, VectorForm]:
    kind = own.text("model_type") if own is not None else ""
    classifies = any(name.endswith("ForSequenceClassification") for name in _architectures(config))
    if declared.score_tokens is not None:
        return Task.RERANK, VectorForm.DENSE
    if kind == "CrossEncoder" or settings.task == "sequence-classification" or (classifies and not declared.steps):
        return (Task.RERANK if _label_count(config) == 1 else Task.CLASSIFY), VectorForm.DENSE
    if any(isinstance(step, SparsePooling) for step in declared.steps):
        return Task.EMBED, VectorForm.SPARSE
    if kind == "SparseEncoder":
        assert own is not None
        raise own.refused("model_type", "has no SpladePooling among its modules", "serve it with another backend")
    if declared.has_token_mask or kind == "MultiVectorEncoder":
        return Task.EMBED, VectorForm.MULTI
    if declared.steps and not any(isinstance(step, Pooling) for step in declared.steps):
        raise ModelLoadError("modules.json has no Pooling, so that nothing makes one vector of a text")
    return Task.EMBED, VectorForm.DENSE


def _label_count(config: Document) -> int:
    names = config.words("id2label")
    if names:
        return len(names)
    return config.integer("num_labels", 1) or 2  # transformers' default


def _labels(config: Document, task: Task) -> tuple[tuple[str, ...], str, bool]:
    """Labels, the activation of logits, and whether labels exclude each other."""
    if task is Task.EMBED:
        return (), "Identity", True
    names = config.words("id2label")
    count = _label_count(config) if task is Task.CLASSIFY else 1
    try:
        by_number = {int(key): name for key, name in names.items()}
    except ValueError as error:
        raise config.refused("id2label", "has keys that are no numbers", "write {'0': name}") from error
    labels = tuple(by_number.get(at, f"LABEL_{at}") for at in range(count))
    dotted = config.text("sbert_ce_default_activation_function")
    section = config.section("sentence_transformers")
    if section is not None:
        dotted = section.text("activation_fn") or dotted
    leaf = dotted.rpartition(".")[2]
    if dotted and (not dotted.startswith("torch.") or leaf not in ACTIVATIONS):
        raise ConfigurationError(
            "is no activation that this server knows",
            source=config.source,
            key="sentence_transformers.activation_fn",
            value=dotted,
            remedy=f"one of torch's {', '.join(ACTIVATIONS)}",
        )
    exclusive = config.text("problem_type") != "multi_label_classification"
    return labels, leaf or ("Sigmoid" if task is Task.RERANK else "Identity"), exclusive


def _model_settings(own: Document | None) -> tuple[Mapping[str, str], str, str, int | None]:
    """Prompts, the default one, the similarity, and the dimensions of config_sentence_transformers.json."""
    if own is None:
        return MappingProxyType({}), "", "cosine", None
    prompts = MappingProxyType(own.words("prompts"))
    default = own.text("default_prompt_name")
    if default and default not in prompts:
        known = ", ".join(prompts) or "none"
        raise own.refused("default_prompt_name", f"is not among the prompts: {known}", "name one of them, or null")
    similarity = own.text("similarity_fn_name", "cosine")
    dimensions = own.integer("truncate_dim", 1)
    own.pass_over("__version__", "model_type")
    if similarity == "maxsim":
        own.pass_over("similarity_fn_name")
    own.refuse_rest()
    return prompts, default, similarity, dimensions


def _graph(path: Path, transformer: Path, filename: str) -> Path:
    if filename and (path / filename).is_file():
        return path / filename
    if not filename or filename in GRAPHS:
        for directory in dict.fromkeys((path, transformer)):
            for name in GRAPHS:
                if (directory / name).is_file():
                    return directory / name
    others = sorted(str(found.relative_to(path)) for found in (*path.glob("*.onnx"), *path.glob("onnx/*.onnx")))
    if filename:
        raise ModelLoadError(f"unable to find '{path / filename}'; there are: {', '.join(others[:10]) or 'none'}")
    if others:
        raise ModelLoadError(
            f"unable to find '{path / GRAPHS[0]}' or '{path / GRAPHS[1]}'; name one of these as model_filename: "
            f"{', '.join(others[:10])}"
        )
    has_weights = any((transformer / name).exists() for name in ("model.safetensors", "pytorch_model.bin"))
    remedy = "make it of the weights with `toutates import`" if has_weights else "copy the whole model folder"
    raise ModelLoadError(f"unable to find '{path / GRAPHS[0]}' or '{path / GRAPHS[1]}'; {remedy}")


# --- tables of vectors -----------------------------------------------------------------------------------------------


def _read_table(path: Path, transformer: Path, modules: list[_Module]) -> TextFolder:
    own = read_document(path / "config_sentence_transformers.json")
    prompts, default_prompt, similarity, dimensions = _model_settings(own)
    declared = Declared([read_module(path / one.path, one.leaf, one.kwargs) for one in modules[1:]])
    if declared.has_token_mask or any(isinstance(step, (Pooling, SparsePooling)) for step in declared.steps):
        raise ModelLoadError("modules.json has a module of tokens behind StaticEmbedding, which has none")
    limit = _TABLE_TOKENS
    document: Any = read_json(transformer / "tokenizer.json")
    truncation = document.get("truncation") if isinstance(document, dict) else None
    if isinstance(truncation, dict) and isinstance(truncation.get("max_length"), int):
        limit = max(1, truncation["max_length"])  # what sentence-transformers keeps for such models alone
    return TextFolder(
        path=path,
        transformer=transformer,
        graph=None,
        task=Task.EMBED,
        form=VectorForm.DENSE,
        steps=declared.steps,
        max_tokens=limit,
        prompts=prompts,
        default_prompt=default_prompt,
        similarity=similarity,
        dimensions=dimensions,
        special=False,
        model_type="static",
        declares_pooling=True,
    )
