"""What a request to load a model brings, and the words in which such a request is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from toutates.models.config.settings import MODEL_DIRECTORY, is_inside
from toutates.models.config.triton_configuration import TritonConfiguration, triton_configuration
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.names import with_client_names
from toutates.system.errors import ConfigurationError, InvalidRequest
from toutates.system.text import one_line, shown

__all__ = ["check_paths", "failed", "override_of"]

_MAX_CONFIG: Final = 2**20  # characters
#: Parameters that are paths, with what their values have to begin with; without that, they are names of files.
_PATHS: Final = {"EXECUTION_ENV_PATH": f"{MODEL_DIRECTORY}/", "toutates.profiling.file_prefix": ""}
#: Names of ``max_batch_size`` in JSON.
_BATCH_SIZE_NAMES: Final = frozenset({"max_batch_size", "maxBatchSize"})


def failed(name: str) -> str:
    """Triton's words, which end where ours begin."""
    return f"failed to load '{name}', failed to poll from model repository"


def override_of(name: str, text: str) -> TritonConfiguration:
    """The configuration that a request brings.

    Raises:
        InvalidRequest: it is not a ModelConfig in JSON, or the model cannot be served so.
    """
    if len(text) > _MAX_CONFIG:
        raise InvalidRequest(f"{failed(name)}: load parameter 'config' has more than {_MAX_CONFIG} characters")
    config = ModelConfig()
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("it is no object; write `{...}`")
        json_format.ParseDict(_with_lists(document), config)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        told = one_line(with_client_names(str(error)), 300)
        raise InvalidRequest(f"{failed(name)}: load parameter 'config' is not a ModelConfig in JSON: {told}") from error
    try:
        says = _BATCH_SIZE_NAMES & document.keys()
        return triton_configuration(config, name, Path("config"), says_batch_size=bool(says))
    except ConfigurationError as error:
        raise InvalidRequest(f"{failed(name)}: {error}") from error


def check_paths(name: str, config: ModelConfig, own: ModelConfig | None = None) -> None:
    """Refuse what a request's configuration names outside of the model's directory, where the repository does not.

    Args:
        name: of the model.
        config: of the request.
        own: that the repository has for it; None for none.

    Raises:
        InvalidRequest: there is such a path.
    """
    for key, start in _PATHS.items():
        if key not in config.parameters:
            continue
        path = config.parameters[key].string_value
        is_own = own is not None and key in own.parameters and own.parameters[key].string_value == path
        fits = path.startswith(start) and is_inside(path[len(start) :]) and (start or "/" not in path)
        if path and not is_own and not fits:
            problem = "leaves the model's directory" if start else "is no name without folders"
            raise InvalidRequest(
                f"{failed(name)}: load parameter 'config': parameters.{key} {problem} (got '{shown(path)}'): write "
                f"one such as '{start}NAME', or name it in the repository's config.pbtxt"
            )


def _with_lists(document: dict[str, Any]) -> dict[str, Any]:
    """The members of a ModelConfig, with a list of one where an object stands for a list, as Triton takes it."""
    fields = ModelConfig.DESCRIPTOR.fields
    lists = {
        name
        for field in fields
        if field.is_repeated and field.message_type is not None and not field.message_type.GetOptions().map_entry
        for name in (field.name, field.json_name)
    }
    return {key: [value] if key in lists and isinstance(value, dict) else value for key, value in document.items()}
