"""``toutates serve PATH``: which model, or which repository, lies at a path, and what the model is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from types import MappingProxyType
from typing import Final

from toutates.models.config.misplaced import graphs, near_name
from toutates.models.config.other_kinds import kind_among_files
from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.repository import (
    MODEL_FILENAME,
    has_control_characters,
    is_version,
    not_a_model_name,
    scan,
)
from toutates.models.text_folder import is_text_folder
from toutates.repositories.specification import (
    ArtifactSpecification,
    BucketSpecification,
    FileSpecification,
    HubSpecification,
)
from toutates.server.options import Options
from toutates.system.errors import ConfigurationError

__all__ = ["defaults_of_path", "serving_path"]

_SUFFIX: Final = ".onnx"
#: Where exporters of the Hugging Face Hub put the graphs of a model.
_HUB_FOLDER: Final = "onnx"
#: How the Hub's cache calls the folder of a model, and the one in it that has a folder for each revision.
_HUB_CACHE: Final = "models--"
_SNAPSHOTS: Final = "snapshots"
#: A name for a model whose path says none.
_NO_NAME: Final = "model"

_IMPORT: Final = "make a model of it with 'toutates import {path}', and serve that"
_CONVERT: Final = "export it to ONNX"
#: What to do with files that are no ONNX graph, by suffix.
_OTHERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".mar": _IMPORT,
        ".gz": _IMPORT,
        ".safetensors": "name its folder, or make a model of that with 'toutates import'",
        ".pt": f"{_CONVERT} with torch.onnx, or see docs/backends.md for models of PyTorch",
        ".pth": f"{_CONVERT} with torch.onnx",
        ".bin": f"{_CONVERT} with torch.onnx",
        ".h5": f"{_CONVERT} with tf2onnx",
        ".keras": f"{_CONVERT} with tf2onnx",
        ".pb": f"{_CONVERT} with tf2onnx",
        ".tflite": f"{_CONVERT} with tf2onnx",
        ".pkl": f"{_CONVERT} with skl2onnx, or see docs/backends.md for models of scikit-learn",
        ".joblib": f"{_CONVERT} with skl2onnx, or see docs/backends.md for models of scikit-learn",
        ".skops": "see docs/backends.md for models of scikit-learn",
        ".plan": "serve the ONNX model that the plan was built from",
        ".engine": "serve the ONNX model that the plan was built from",
        ".gguf": "it is for servers of language models",
    }
)
_LFS: Final = b"version https://git-lfs"


def defaults_of_path(path: str) -> dict[str, str]:
    """Defaults of settings where one model is served: a new file is loaded soon, and a wrong one ends the start.

    A repository has those of a server. Blocks while it looks.
    """
    if path.lower().startswith(("hf://", "oci://", "https://")):
        return {"exit-on-error": "true"}
    if "://" in path:
        own = {"model-control-mode": "poll", "exit-on-error": "true"}
        return own if path.rstrip("/").endswith(_SUFFIX) else {}
    if _is_repository(Path(path)):
        return {}
    return {"model-control-mode": "poll", "repository-poll-secs": "2", "exit-on-error": "true"}


def serving_path(options: Options, path: str) -> Options:
    """The options of a server for what lies at a path. Blocks while it looks.

    Args:
        options: with the path as the first repository.
        path: as the operator has written it.

    Raises:
        ConfigurationError: there is nothing that can be served.
    """
    place, *others = options.model_repositories
    options = replace(options, shows_client=True)
    if isinstance(place, BucketSpecification):
        located = _in_bucket(place, options.model_name)
        options = _with_the_model(options) if located.file else options
        return replace(options, model_repositories=(located, *others), model_name="")
    if isinstance(place, (HubSpecification, ArtifactSpecification)):
        place = replace(place, model_name=options.model_name or place.model_name, flag="PATH")
        places = (place, *options.model_repositories[1:])
        return replace(_with_the_model(options), model_repositories=places, model_name="")
    assert isinstance(place, Path)
    found = Path(os.path.abspath(place))
    if found.is_dir():
        return _serving_folder(options, found, path)
    if not found.exists():
        near = near_name(found.name, _names(found.parent))
        remedy = f"did you mean '{found.parent / near}'?" if near else "correct the path"
        raise _refused("there is no such file or folder", path, remedy)
    if not found.is_file():
        raise _refused("is neither a file nor a folder", path, "name a file such as model.onnx")
    return _serving_file(options, found, path)


def _serving_file(options: Options, file: Path, path: str, name: str = "") -> Options:
    _check(file, path)
    place = FileSpecification(file, options.model_name or name or _name_of_file(file))
    places = (place, *options.model_repositories[1:])
    return replace(_with_the_model(options), model_repositories=places, model_name="")


def _with_the_model(options: Options) -> Options:
    """The options of one model: with --model-control-mode explicit too it is loaded at the start."""
    return replace(options, load_models=options.load_models or None)


def _serving_folder(options: Options, folder: Path, path: str) -> Options:
    if _is_model(folder):
        if options.model_name:
            raise _refused(
                "is for a file, and for a folder without versions; this one has the name of its folder",
                options.model_name,
                "leave it out, or rename the folder",
                "--name",
            )
        if options.load_models:
            raise _refused("is for repositories, and PATH is one model", options.load_models[0], key="--load-models")
        return replace(
            options,
            model_repositories=(folder.parent, *options.model_repositories[1:]),
            load_models=(folder.name,),
        )
    if _is_repository(folder):
        if options.model_name:
            raise _refused("is for one model, and PATH is a repository", options.model_name, key="--name")
        return options
    problem: ConfigurationError | None = None
    is_lone = False
    try:
        is_lone = any(one.is_lone for one in scan(folder, asked_by="PATH", lone_name=_name_of_folder(folder)))
    except ConfigurationError as error:
        problem = error
    if is_lone:
        return replace(_with_the_model(options), model_name=options.model_name or _name_of_folder(folder))
    own = graphs(folder)
    if len(own) == 1:
        return _serving_file(options, folder / own[0], path)
    if own:
        listed = ", ".join(own[:5]) + (", ..." if len(own) > 5 else "")
        raise _refused(f"holds {len(own)} graphs: {listed}", path, f"name one of them, such as '{folder / own[0]}'")
    in_hub_folder = folder / _HUB_FOLDER / MODEL_FILENAME
    if in_hub_folder.is_file():
        return _serving_file(options, in_hub_folder, path, _name_of_folder(folder))
    if problem is not None and os.access(folder, os.R_OK | os.X_OK):
        raise problem
    raise _nothing_in(folder, path)


def _in_bucket(place: BucketSpecification, name: str) -> BucketSpecification:
    """The location of a graph, or of a repository."""
    key = (place.prefix + place.file).rstrip("/")
    if not key.endswith(_SUFFIX):
        if name:
            raise _refused("is for one file, and PATH is a repository", name, "leave it out", "--name")
        return place
    above, slash, file = key.rpartition("/")
    model = name or _name_of_file(PurePosixPath("/", place.bucket, key))
    return replace(place, prefix=above + slash, file=file, model_name=model, flag="PATH")


def _is_model(folder: Path) -> bool:
    """Whether a folder is a model's, with versions in it that are no models themselves."""
    versions = [name for name in _names(folder) if is_version(name)]
    return any(
        (folder / version).is_dir() and not any(is_version(name) for name in _names(folder / version))
        for version in versions
    )


def _is_repository(folder: Path) -> bool:
    """Whether a folder has folders of models in it, and is none itself."""
    names = _names(folder)
    if is_text_folder(names) or _is_model(folder):
        return False
    return any(
        PBTXT_NAME in own or is_text_folder(own) or any(is_version(one) for one in own)
        for own in (_names(folder / name) for name in names if not not_a_model_name(name))
    )


def _check(file: Path, path: str) -> None:
    """See that a file may be a graph; what it really is, ONNX Runtime finds out.

    Raises:
        ConfigurationError: it cannot be read, or is something else.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(len(_LFS))
    except OSError as error:
        raise _refused(f"cannot be read: {error.strerror}", path, "make it readable for the server's user") from error
    if not head:
        raise _refused("is empty", path, "export or copy it again")
    if head == _LFS:
        raise _refused("is a pointer of Git LFS, and not the model", path, "fetch the model with 'git lfs pull'")
    remedy = _OTHERS.get(file.suffix.lower())
    if remedy is not None:
        raise _refused("is no ONNX model", path, remedy.format(path=path))


def _nothing_in(folder: Path, path: str) -> ConfigurationError:
    names = _names(folder)
    other = kind_among_files(names)
    if other is not None:
        return _refused(f"holds '{other[0]}'; {other[1].plural} are not served", path, other[1].remedy)
    weights = [name for name in names if name.endswith((".safetensors", ".bin")) and "config.json" in names]
    if weights:
        return _refused("holds weights and no graph", path, f"make a model of it with 'toutates import {path}'")
    example = f"name a file such as '{folder / MODEL_FILENAME}', or let 'toutates init {path}' write a repository"
    return _refused("holds no model", path, example)


def _name_of_file(path: PurePath) -> str:
    """What a graph is called: by its file, or by its folder where the file has the name that all have."""
    stem = path.name.removesuffix(_SUFFIX)
    if stem != _NO_NAME and not stem.startswith(f"{_NO_NAME}_"):
        return _usable(stem)
    folder = path.parent
    return _name_of_folder(folder.parent if folder.name == _HUB_FOLDER else folder)


def _name_of_folder(folder: PurePath) -> str:
    if is_version(folder.name):
        folder = folder.parent
    elif folder.parent.name == _SNAPSHOTS and folder.parent.parent.name.startswith(_HUB_CACHE):
        return _usable(folder.parent.parent.name.rpartition("--")[2])
    return _usable(folder.name)


def _usable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return _NO_NAME
    return _NO_NAME if not name or not_a_model_name(name) or has_control_characters(name) else name


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _refused(problem: str, value: str, remedy: str = "leave it out", key: str = "PATH") -> ConfigurationError:
    return ConfigurationError(problem, key=key, value=value, remedy=remedy)
