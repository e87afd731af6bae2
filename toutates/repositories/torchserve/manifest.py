"""MAR-INF/MANIFEST.json of a model archive: the model's name and version, and the handler that runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toutates.models.config.small_file import read_small_file
from toutates.system.errors import ConfigurationError
from toutates.system.text import shown

__all__ = ["MANIFEST", "Handler", "Manifest", "find_handler", "is_model_name", "read_manifest"]

MANIFEST: Final = Path("MAR-INF", "MANIFEST.json")
#: In the place of its folder in an archive of torch-workflow-archiver.
_WORKFLOW: Final = "WAR-INF"

_MOST_BYTES: Final = 2**20
_RUNTIMES: Final = ("python", "python3", "LSP")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_VERSION: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
#: Triton's own sub-directories of a model and names of packages beside the handler are no question here: the archive
#: has a directory of its own.
_MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: TorchServe's own handlers. The first runs here; the others are made of torchvision, torchtext and transformers.
BASE_HANDLER: Final = "base_handler"
_BUILT_IN: Final = {
    "image_classifier": "torch and torchvision",
    "image_segmenter": "torch and torchvision",
    "object_detector": "torch and torchvision",
    "text_classifier": "torch and torchtext",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says; "" for what it leaves out.

    Attributes:
        name: of the model.
        version: TorchServe's, such as "1.0".
        handler: as written: a file, a file and a function, a module, or one of TorchServe's own.
        serialized_file, model_file, requirements_file, config_file: names of files in the archive.
        document: all of it, which handlers read.
    """

    name: str
    version: str
    handler: str
    serialized_file: str
    model_file: str
    requirements_file: str
    config_file: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """What runs a model.

    Attributes:
        module: its name in Python.
        function: of the module, that is called; "" for ``handle``, or the only class of the module.
        is_base: whether it is TorchServe's own base handler.
    """

    module: str
    function: str
    is_base: bool = False


def read_manifest(folder: Path, archive: Path, name: str = "", handler: str = "") -> Manifest:
    """Read the manifest of an archive that is unpacked.

    Args:
        folder: where it is unpacked.
        archive: for errors, and for the model's name where there is no manifest.
        name, handler: hold in place of the manifest's; "" for the manifest's.

    Raises:
        ConfigurationError: it cannot be read, or lacks what it must have.
    """
    if archive.suffix == ".war" or (folder / _WORKFLOW).is_dir():
        remedy = "import the archives of its models, and join them by an ensemble"
        raise _wrong(archive, "is a workflow of TorchServe, and workflows are not offered", remedy)
    data = read_small_file(folder / MANIFEST, _MOST_BYTES)
    if data is None:
        document: Any = {"runtime": "python", "model": {"modelName": _stem(archive), "modelVersion": "1.0"}}
    else:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _wrong(archive, "is no JSON", "make the archive again") from error
    if not isinstance(document, dict):
        raise _wrong(archive, "is no object", "make the archive again")
    model = document.get("model")
    if not isinstance(model, dict):
        raise _wrong(archive, "Missing Model entry in manifest file.", "make the archive again")
    if document.get("runtime", "python") not in _RUNTIMES:
        raise _wrong(archive, "Runtime is not defined or invalid.", "archives of Python handlers alone can be imported")

    def text(key: str) -> str:
        value = model.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise _wrong(archive, f"model.{key} is no text", "make the archive again")
        return value

    manifest = Manifest(
        name=name or text("modelName"),
        version=text("modelVersion"),
        handler=handler or text("handler"),
        serialized_file=text("serializedFile"),
        model_file=text("modelFile"),
        requirements_file=text("requirementsFile"),
        config_file=text("configFile"),
        document=document,
    )
    _check(manifest, folder, archive)
    return manifest


def _check(manifest: Manifest, folder: Path, archive: Path) -> None:
    if not manifest.name:
        raise _wrong(archive, "Model name is not defined.", "name the model by --model-name")
    if not is_model_name(manifest.name):
        problem = f"the model's name '{shown(manifest.name)}' is not a letter, then letters, digits, '_', '-' and '.'"
        raise _wrong(archive, problem, "name the model by --model-name")
    if not manifest.version:
        raise _wrong(archive, "Model version is not defined.", "make the archive with --version")
    if not _VERSION.fullmatch(manifest.version):
        raise _wrong(archive, f"the model's version '{shown(manifest.version)}' is none", "make the archive again")
    if not manifest.handler:
        raise _wrong(archive, "there is no handler", "name it by --handler FILE.py")
    for what, name in (
        ("serializedFile", manifest.serialized_file),
        ("modelFile", manifest.model_file),
        ("requirementsFile", manifest.requirements_file),
        ("configFile", manifest.config_file),
    ):
        if name and ("/" in name or "\0" in name or not (folder / name).is_file()):
            raise _wrong(archive, f"model.{what} names '{shown(name)}', which is not there", "make the archive again")


def find_handler(manifest: Manifest, folder: Path, archive: Path) -> Handler:
    """The handler that a manifest names; nothing of it is run.

    Raises:
        ConfigurationError: it is not in the archive, or one of TorchServe's own that is not here.
    """
    written, _, function = manifest.handler.partition(":")
    if written == BASE_HANDLER:
        return Handler("ts.torch_handler.base_handler", "", is_base=True)
    if written in _BUILT_IN and not (folder / f"{written}.py").is_file():
        raise _wrong(
            archive,
            f"the handler is TorchServe's own '{written}', which is made of {_BUILT_IN[written]} and is not here",
            "put a file of your own into the archive, a class that inherits from "
            "ts.torch_handler.base_handler.BaseHandler with preprocess and postprocess, and name it by --handler",
        )
    module = written.removesuffix(".py").rpartition("/")[2]
    is_there = (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()
    if not _MODULE.fullmatch(module) or not is_there:
        raise _wrong(
            archive,
            f"Unable to load module {shown(module)}, make sure it is added to python path",
            "the handler is a file at the top of the archive; name it by --handler FILE.py",
        )
    if function and not function.isidentifier():
        raise _wrong(archive, f"the handler's function '{shown(function)}' is no name", "write FILE.py:FUNCTION")
    return Handler(module, function)


def is_model_name(name: str) -> bool:
    """Whether a model of TorchServe can have this name."""
    return _NAME.fullmatch(name) is not None


def _stem(archive: Path) -> str:
    name = archive.absolute().name
    for suffix in (".tar.gz", ".tgz", ".mar", ".zip"):
        name = name.removesuffix(suffix)
    return name


def _wrong(archive: Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=archive, key=MANIFEST.name, remedy=remedy)
