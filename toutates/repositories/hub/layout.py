"""Which files of a repository of the Hub make the model: one graph, and not every other format of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.settings import CONFIG_NAME, MODEL_FILENAME
from toutates.models.repository import belongs_to_graph, is_version
from toutates.models.text_folder import is_text_folder
from toutates.repositories.s3.keys import ModelFiles, S3Object

__all__ = ["hub_model"]

_SUFFIX: Final = ".onnx"
#: Where exporters put the graph.
_GRAPHS: Final = (MODEL_FILENAME, f"onnx/{MODEL_FILENAME}")
_SAFETENSORS: Final = ".safetensors"
#: Weights for other frameworks, in the model's own folder.
_OTHERS: Final = (".bin", ".h5", ".ot", ".msgpack", ".pt", ".pth", ".ckpt", ".gguf", ".tflite", ".tar.gz", _SUFFIX)
#: Folders of a text model's modules, as sentence-transformers numbers them.
_MODULE: Final = re.compile(r"[0-9]+_\w+", re.ASCII)


def hub_model(objects: Iterable[S3Object], url: str, name: str, graph: str = "") -> ModelFiles | str:
    """The model that these files make, with the paths that they have in its directory.

    Args:
        objects: every file of the Hub's repository.
        url: of it.
        name: of the model.
        graph: path of the graph; "" for model.onnx, onnx/model.onnx or the only one there is.

    Returns:
        A model's directory as it is in a repository, where there are versions in it; the folder of a text model; or
        the graph as version 1. Otherwise problem and remedy, joined by a semicolon.
    """
    files = {found.key: found for found in objects if not any(part[:1] == "." for part in found.key.split("/"))}
    model = ModelFiles(name, url)
    own = {path for path in files if "/" not in path}
    folders = {path.partition("/")[0] for path in files.keys() - own}
    if graph and graph not in files:
        return f"there is no file {graph!r}; {_instead(files)}"
    is_text = is_text_folder(own)
    if not graph and (any(map(is_version, folders)) or {CONFIG_NAME, PBTXT_NAME} & own):
        wanted = {path: path for path in files}
    else:
        graph = graph or _graph_among(files)
        if not graph and not (is_text and "modules.json" in own and "model.safetensors" in own):
            has_weights = any(path.endswith((_SAFETENSORS, ".bin")) for path in own)
            return f"it holds {'weights and ' * has_weights}no graph; {_instead(files)}"
        wanted = _parts_of_text_model(own, files, bool(graph)) if is_text else {}
        folder = graph.rpartition("/")[0] + "/" if "/" in graph else ""
        start = "" if is_text else "1/"
        for path in files:
            beside = path.removeprefix(folder)
            if (
                graph
                and path.startswith(folder)
                and "/" not in beside
                and belongs_to_graph(beside, graph[len(folder) :])
            ):
                wanted[path] = start + (MODEL_FILENAME if path == graph else beside)
    for path, inside in wanted.items():
        model.add(inside, files[path])
    return model


def _graph_among(paths: Collection[str]) -> str:
    """The graph that is meant where none is named; "" if that cannot be told."""
    for path in _GRAPHS:
        if path in paths:
            return path
    graphs = [path for path in paths if path.endswith(_SUFFIX)]
    return graphs[0] if len(graphs) == 1 else ""


def _parts_of_text_model(own: Collection[str], paths: Collection[str], has_graph: bool) -> dict[str, str]:
    """The files beside the graph: tokenizer, settings and modules; weights where a table of vectors is the model."""
    left_out = (*_OTHERS, _SAFETENSORS) if has_graph else _OTHERS
    kept = [path for path in own if not path.endswith(left_out)]
    kept += [path for path in paths if "/" in path and _MODULE.fullmatch(path.partition("/")[0])]
    return {path: path for path in kept}


def _instead(paths: Collection[str]) -> str:
    graphs = sorted(path for path in paths if path.endswith(_SUFFIX))
    if graphs:
        return f"name one of its graphs after the model: {', '.join(graphs[:5])}"
    return "name a model with a graph (.onnx), or download this one and make a graph of it with 'toutates import'"
