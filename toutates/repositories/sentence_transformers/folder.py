"""What a folder of sentence-transformers, or of transformers alone, declares: its encoder, its output, its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toutates.protocol.safetensors import open_safetensors
from toutates.repositories.sentence_transformers.documents import read_document, read_object
from toutates.repositories.sentence_transformers.family import Output
from toutates.repositories.sentence_transformers.weights import WEIGHTS
from toutates.system.errors import ConfigurationError
from toutates.system.text import shown

__all__ = ["CONFIG", "MODULES", "ModelFolder", "is_model_folder", "read_folder"]

MODULES: Final = "modules.json"
CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
_MANIFEST: Final = "MAR-INF"
_ROOT_FILES: Final = (MODULES, "config_sentence_transformers.json", "README.md", "LICENSE")
_ENCODER_FILES: Final = (
    *(CONFIG, TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(
        f"sentence_{kind}_config.json"
        for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
_STATIC: Final = "StaticEmbedding"
#: The output of an encoder, by ``transformer_task`` of its settings.
_OUTPUTS: Final[Mapping[str, Output]] = {
    "feature-extraction": Output.HIDDEN,
    "sequence-classification": Output.LABELS,
    "fill-mask": Output.TOKENS,
}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that can be imported.

    Attributes:
        path: of the folder.
        encoder: the directory in it that the encoder's files are in; "" for the folder itself.
        config: config.json of the encoder; {} where there is no encoder.
        output: what the encoder's graph has to compute; None for a table of vectors, which needs no graph.
        files: paths of what is copied, relative to the folder.
        takes_first: whether a text's vector is that of its first token; else the mean is assumed.
    """

    path: Path
    encoder: str
    config: Mapping[str, Any]
    output: Output | None
    files: tuple[str, ...]
    takes_first: bool = False


def is_model_folder(path: Path) -> bool:
    """Whether a path is a folder as sentence-transformers or transformers save it."""
    return not (path / _MANIFEST).exists() and any((path / name).is_file() for name in (CONFIG, MODULES))


def read_folder(path: Path) -> ModelFolder:
    """Read what a folder declares, but not its weights. Blocks.

    Raises:
        ConfigurationError: a file is missing, cannot be read, or declares what cannot be converted.
    """
    modules = _read_modules(path)
    kinds = [kind for kind, _ in modules]
    encoder = modules[0][1] if modules else ""
    _require_tokenizer(path / encoder)
    files = [*_ROOT_FILES, *(str(Path(encoder, name)) for name in _ENCODER_FILES)]
    for kind, folder in modules[1:]:
        files += _files_of_module(path, kind, folder)
    if kinds[:1] == [_STATIC]:
        open_safetensors(path / encoder / WEIGHTS)
        return ModelFolder(path, encoder, {}, None, _existing(path, [*files, str(Path(encoder, WEIGHTS))]))
    config = read_object(path / encoder / CONFIG)
    if config is None:
        raise ConfigurationError("is missing", source=path / encoder / CONFIG, remedy="copy the whole model folder")
    output = _output(path, encoder, config, kinds)
    return ModelFolder(path, encoder, config, output, _existing(path, files), _takes_first(path, modules))


def _read_modules(path: Path) -> Sequence[tuple[str, str]]:
    """The type, without its package, and the folder of each module; none where there is no modules.json."""
    source = path / MODULES
    entries = read_document(source)
    if entries is None and not source.exists():
        return ()
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError("is no list of modules", source=source, remedy="download or save the file again")
    modules = []
    for number, entry in enumerate(entries):
        kind, folder = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise ConfigurationError(
                "has no type and path", source=source, key=f"[{number}]", remedy="download or save the file again"
            )
        if not kind.startswith("sentence_transformers."):
            raise ConfigurationError(
                "is Python code of the model's own, which is not run",
                source=source,
                key=f"[{number}].type",
                value=shown(kind),
                remedy="models of sentence-transformers' own modules alone can be imported",
            )
        if Path(folder).is_absolute() or ".." in Path(folder).parts or "\0" in folder:
            raise ConfigurationError(
                "leaves the folder",
                source=source,
                key=f"[{number}].path",
                value=shown(folder),
                remedy="name a folder within",
            )
        modules.append((kind.rpartition(".")[2], folder))
    return modules


def _require_tokenizer(encoder: Path) -> None:
    if not (encoder / TOKENIZER).is_file():
        raise ConfigurationError(
            f"has no {TOKENIZER}",
            source=encoder,
            remedy="make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers",
        )


def _files_of_module(path: Path, kind: str, folder: str) -> list[str]:
    """The files of a module behind the encoder. A module without weights, such as Normalize, may have no folder."""
    if not folder:
        return []
    if (path / folder / "pytorch_model.bin").exists() and not (path / folder / WEIGHTS).exists():
        raise ConfigurationError(
            "has weights that are a pickle, which runs the code of whoever wrote it, and is not read",
            source=path / folder,
            key=kind,
            remedy="save the model with sentence-transformers 3 or newer, which writes model.safetensors",
        )
    if (path / folder / WEIGHTS).exists():
        open_safetensors(path / folder / WEIGHTS)
    return [str(Path(folder, name)) for name in (CONFIG, WEIGHTS)]


def _existing(path: Path, files: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(file for file in files if (path / file).is_file()))


def _output(path: Path, encoder: str, config: Mapping[str, Any], kinds: Sequence[str]) -> Output:
    """What the encoder computes: by its settings, by the modules behind it, and by the architecture."""
    own = read_object(path / "config_sentence_transformers.json") or {}
    for name in _ENCODER_FILES:
        settings = (read_object(path / encoder / name) or {}) if name.startswith("sentence_") else {}
        task = settings.get("transformer_task")
        if task is not None:
            if not isinstance(task, str) or task not in _OUTPUTS:
                raise ConfigurationError(
                    "cannot be converted",
                    source=path / encoder / name,
                    key="transformer_task",
                    value=shown(str(task)),
                    remedy=f"known are {', '.join(_OUTPUTS)}",
                )
            return _OUTPUTS[task]
    if "SpladePooling" in kinds or kinds[:1] == ["MLMTransformer"]:
        return Output.TOKENS
    if kinds and kinds[0] != "Transformer":
        raise ConfigurationError(
            "is no encoder of texts that can be converted",
            source=path / MODULES,
            key="[0].type",
            value=shown(kinds[0]),
            remedy="known are Transformer, MLMTransformer and StaticEmbedding",
        )
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    classifies = any(isinstance(name, str) and name.endswith("ForSequenceClassification") for name in names)
    if own.get("model_type") == "CrossEncoder" or (classifies and len(kinds) < 2):
        return Output.LABELS
    return Output.HIDDEN


def _takes_first(path: Path, modules: Sequence[tuple[str, str]]) -> bool:
    for kind, folder in modules:
        if kind == "Pooling":
            config = read_object(path / folder / CONFIG) or {}
            return config.get("pooling_mode_cls_token") is True or config.get("pooling_mode") == "cls"
    return False
