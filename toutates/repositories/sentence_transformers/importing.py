"""Turning a folder of sentence-transformers into a folder of a model repository.

    <repository>/<model>/<version>/model.onnx       the encoder, with model.onnx_data beside it above 2 GB
    <repository>/<model>/<version>/tokenizer.json   and the folder's other files as they were, but for the weights
    <repository>/<model>/<version>/import.json      what was imported, and what quantizing has lost

Everything is made in a hidden directory of the repository, and renamed into place. A refused folder leaves nothing, and
no code of it is run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from toutates.repositories.making import work_directory
from toutates.repositories.sentence_transformers.by_optimum import export
from toutates.repositories.sentence_transformers.converting import FAMILIES, make_graph
from toutates.repositories.sentence_transformers.folder import ModelFolder, read_folder
from toutates.repositories.sentence_transformers.graph import require_onnx
from toutates.repositories.sentence_transformers.trying import Loss, loss_of, quantize, results_of
from toutates.system.errors import ConfigurationError
from toutates.system.text import shown
from toutates.system.version import package_version

__all__ = ["ImportedModel", "WantedModel", "import_model"]

_GRAPH: Final = "model.onnx"
_RECORD: Final = "import.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
#: Directories of Hugging Face's cache: models--OWNER--NAME/snapshots/COMMIT.
_CACHED: Final = re.compile(r"models--(?:.+--)?(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WantedModel:
    """How a folder is imported.

    Attributes:
        name: of the model; "" for the folder's.
        version: its number.
        int8: whether the weights are quantized.
        with_optimum: whether optimum converts the model, whatever its architecture.
        ignored: settings of config.json that the operator says change nothing.
    """

    name: str = ""
    version: int = 1
    int8: bool = False
    with_optimum: bool = False
    ignored: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """What was imported.

    Attributes:
        model: its name.
        version: its number.
        path: the version's directory.
        loss: of quantizing; None where the weights are not quantized.
    """

    model: str
    version: int
    path: Path
    loss: Loss | None


def import_model(
    path: Path, repository: Path, wanted: WantedModel, progress: Callable[[str], object] = lambda text: None
) -> ImportedModel:
    """Import a folder. Blocks.

    Args:
        path: of the folder.
        repository: the model repository's directory, which is made if it is not there.
        wanted: how.
        progress: is told what is being done, a line at a time.

    Raises:
        ConfigurationError: the folder cannot be imported, or the repository not written.
    """
    path, repository = Path(os.path.abspath(path)), Path(os.path.abspath(repository))
    name = wanted.name or _name_of(path)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "is no name of letters, digits, '_', '-' and '.'",
            key="--model-name",
            value=shown(name),
            remedy="name the model by --model-name",
        )
    version_dir = repository / name / str(wanted.version)
    if version_dir.exists():
        raise ConfigurationError(
            "is there already", source=version_dir, remedy="remove it first, or give another --model-version"
        )
    folder = read_folder(path)
    with work_directory(repository, path, "the folder") as work:
        new = work / "version"
        new.mkdir()
        for file in folder.files:
            target = new / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path / file, target)
        loss = None if folder.output is None else _convert(folder, new, wanted, progress)
        record: dict[str, Any] = {
            "made_by": f"toutates {package_version()}",
            "of": path.name,
            "weights": "int8" if loss is not None else "float32",
        }
        if loss is not None:
            record["loss"] = asdict(loss)
        (new / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        version_dir.parent.mkdir(exist_ok=True)
        new.rename(version_dir)
    return ImportedModel(name, wanted.version, version_dir, loss)


def _name_of(path: Path) -> str:
    """The name of a folder; of a snapshot in Hugging Face's cache, the model's."""
    cached = _CACHED.fullmatch(path.parent.parent.name) if path.parent.name == "snapshots" else None
    return cached[1] if cached is not None else path.name


def _convert(folder: ModelFolder, new: Path, wanted: WantedModel, progress: Callable[[str], object]) -> Loss | None:
    """Write the graph of a folder's encoder, and run it; returns what quantizing it has lost."""
    require_onnx()
    assert folder.output is not None
    encoder, target = folder.path / folder.encoder, new / folder.encoder
    graph = target / _GRAPH
    kind = folder.config.get("model_type")
    if wanted.with_optimum or not isinstance(kind, str) or kind not in FAMILIES:
        progress("converting by optimum")
        known = ", ".join(FAMILIES)
        reason = (
            "optimum was asked for"
            if wanted.with_optimum
            else f"model_type '{shown(str(kind))}' is none of {known}, which are converted without PyTorch"
        )
        written = new.parent / "optimum"
        written.mkdir()
        export(encoder, folder.output, written, reason)
        for file in written.glob(f"{_GRAPH}*"):
            file.rename(target / file.name)
    else:
        progress(f"writing the graph of a {kind} model")
        made = make_graph(encoder, folder.config, folder.output, wanted.ignored)
        shown_percent = -10

        def written_so_far(done: int, total: int) -> None:
            nonlocal shown_percent
            percent = 100 * done // total
            if percent >= shown_percent + 10:
                shown_percent = percent
                progress(f"{percent} % of {total / 1e6:.0f} MB of weights")

        made.write(graph, written_so_far)
    progress("running it on sample texts")
    exact = results_of(graph, folder)
    if not wanted.int8:
        return None
    progress("quantizing the weights")
    small = new.parent / "quantized"
    small.mkdir()
    quantize(graph, small / _GRAPH)
    for file in target.glob(f"{_GRAPH}*"):
        file.unlink()
    for file in small.iterdir():
        file.rename(target / file.name)
    progress("measuring what that loses")
    return loss_of(folder, exact, results_of(graph, folder))
