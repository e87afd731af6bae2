"""RepositoryModelLoad and RepositoryModelUnload: reads the requests, and loads and unloads models."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from toutates.api.control_queue import read
from toutates.models.repository import has_control_characters
from toutates.protocol.grpc_service_pb2 import (
    ModelRepositoryParameter,
    RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
)
from toutates.repositories.control.model_control import ModelControl
from toutates.system.errors import InvalidRequest, ModelLoadError, Unsupported
from toutates.system.text import shown

__all__ = ["load_model", "unload_model"]

_FILE: Final = "file:"
#: A path that begins with the model's directory as its root, as users of Triton write it: ``file:/1/model.py``.
_FROM_ROOT: Final = re.compile(r"/[0-9]+/")


async def load_model(control: ModelControl, request: RepositoryModelLoadRequest) -> None:
    """Load a model as the request says, on the main thread.

    Raises:
        RequestError: the request cannot be used, or the model cannot be loaded.
    """
    # In a thread: the request may have gigabytes of files, and reading them copies them.
    name, config, files = await read(request.ByteSize(), _read_load, request)
    try:
        await control.load(name, config, files)
    except ModelLoadError as error:
        # Triton's text ends with a line break.
        raise InvalidRequest(f"load failed for model '{name}': {error}\n") from error


async def unload_model(control: ModelControl, request: RepositoryModelUnloadRequest) -> None:
    """Unload a model, on the main thread.

    Raises:
        RequestError: the request cannot be used.
    """
    name, dependents = _read_unload(request)
    await control.unload(name, dependents=dependents)


def _read_load(request: RepositoryModelLoadRequest) -> tuple[str, str | None, dict[str, bytes]]:
    """Name, configuration and files of a RepositoryModelLoadRequest.

    Raises:
        RequestError: it cannot be used.
    """
    name = _name(request.repository_name, request.model_name)
    if name in (".", "..") or "/" in name or "\0" in name:
        raise InvalidRequest(
            f"invalid model name '{shown(name)}', model name must not contain path traversal characters"
        )
    if has_control_characters(name):
        raise InvalidRequest(f"invalid model name '{shown(name)}', a model's name has no control characters")
    config: str | None = None
    files: dict[str, bytes] = {}
    known: set[tuple[str, ...]] = set()
    for key, parameter in request.parameters.items():
        if key == "config":
            _expect(parameter, "string_param", "load parameter 'config'")
            config = parameter.string_param
        elif key.startswith(_FILE):
            _expect(parameter, "bytes_param", f"load parameter '{shown(key)}'")
            path = key.removeprefix(_FILE)
            path = path[1:] if _FROM_ROOT.match(path) else path
            # Parameters have no order, so of two spellings (1/model.py and 1/./model.py) any might be the last.
            named = PurePosixPath(path).parts
            if named in known:
                raise InvalidRequest(f"load parameter '{shown(key)}' names a file that another one names too")
            known.add(named)
            files[path] = parameter.bytes_param
        else:
            raise InvalidRequest(f"unrecognized load parameter '{shown(key)}'.")
    return name, config, files


def _read_unload(request: RepositoryModelUnloadRequest) -> tuple[str, bool]:
    """Name of the model, and whether those that it is made of go too.

    Raises:
        RequestError: it cannot be used.
    """
    dependents = False
    name = _name(request.repository_name, request.model_name)
    for key, parameter in request.parameters.items():
        if key == "unload_dependents":
            _expect(parameter, "bool_param", "'unload_dependents' parameter")
            dependents = parameter.bool_param
        else:
            raise InvalidRequest(f"unrecognized unload parameter '{shown(key)}'.")
    return name, dependents


def _name(repository: str, model: str) -> str:
    if repository:
        raise Unsupported("'repository_name' specification is not supported")
    name = model.strip()
    if not name:
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    return name


def _expect(parameter: ModelRepositoryParameter, kind: str, what: str) -> None:
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for {what}, expected {kind}.")
