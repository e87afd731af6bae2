"""What a repository has of imported archives: a model's versions by TorchServe's names, and its settings.

TorchServe's versions are texts such as "1.0", Triton's are numbers. The model's config.pbtxt says which is which, so
that a server knows it of each model that it serves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toutates.models.config.pbtxt import PBTXT_NAME, read_pbtxt, write_pbtxt
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError

__all__ = [
    "DESCRIPTION",
    "default_of",
    "is_imported",
    "number_of",
    "read_config",
    "set_default",
    "set_versions",
    "urls_of",
    "versions_of",
    "wanted_number",
    "write_config",
]

#: The file beside ``model.py`` that says which handler runs, and how.
DESCRIPTION: Final = "torchserve.json"

_VERSIONS: Final = "torchserve.versions"
_URLS: Final = "torchserve.urls"
_DEFAULT: Final = "torchserve.default"
_PLAIN: Final = re.compile(r"0*([1-9][0-9]{0,8})(?:\.0+)*")


def is_imported(config: ModelConfig) -> bool:
    """Whether a model was made of archives."""
    return _VERSIONS in config.parameters


def _mapping(config: ModelConfig, key: str) -> dict[str, str]:
    if key not in config.parameters:
        return {}
    try:
        document = json.loads(config.parameters[key].string_value)
        return {str(int(number)): str(text) for number, text in document.items()}
    except (ValueError, AttributeError):
        return {}  # somebody has edited it: the numbers are names as well


def versions_of(config: ModelConfig) -> Mapping[int, str]:
    """TorchServe's names of a model's versions, by number."""
    return {int(number): version for number, version in _mapping(config, _VERSIONS).items()}


def urls_of(config: ModelConfig) -> Mapping[int, str]:
    """The names of the archives that a model's versions were made of, by number."""
    return {int(number): url for number, url in _mapping(config, _URLS).items()}


def default_of(config: ModelConfig) -> int | None:
    """The version that answers requests that name none; None where nothing was said, and the newest does."""
    text = config.parameters[_DEFAULT].string_value if _DEFAULT in config.parameters else ""
    return int(text) if text.isascii() and text.isdigit() else None


def number_of(version: str, versions: Mapping[int, str]) -> int | None:
    """The number of a version of a model; None if it has no such one.

    Args:
        version: as TorchServe names it. "2" and "2.0" are version 2 where no other one has that name.
        versions: of the model, see ``versions_of``.
    """
    for number, name in versions.items():
        if name == version:
            return number
    plain = _PLAIN.fullmatch(version)
    return int(plain[1]) if plain is not None and int(plain[1]) not in versions else None


def wanted_number(version: str, taken: Mapping[int, str]) -> int:
    """A number for a new version: the one that its name is, or the next after all."""
    plain = _PLAIN.fullmatch(version)
    if plain is not None and int(plain[1]) not in taken:
        return int(plain[1])
    return max(taken, default=0) + 1


def set_versions(config: ModelConfig, versions: Mapping[int, str], urls: Mapping[int, str]) -> None:
    """Write the names of a model's versions, and of their archives, into its configuration."""
    config.parameters[_VERSIONS].string_value = json.dumps(dict(sorted(versions.items())))
    config.parameters[_URLS].string_value = json.dumps(dict(sorted(urls.items())))


def set_default(config: ModelConfig, number: int) -> None:
    """Write into a model's configuration which version answers requests that name none."""
    config.parameters[_DEFAULT].string_value = str(number)


def read_config(model_dir: Path) -> ModelConfig | None:
    """The configuration of an imported model; None if there is no such directory.

    Raises:
        ConfigurationError: the directory holds something else, or the configuration cannot be read.
    """
    if not model_dir.exists():
        return None
    config = read_pbtxt(model_dir / PBTXT_NAME)
    if config is None or not is_imported(config):
        raise ConfigurationError(
            "is a model that was not made of an archive",
            source=model_dir,
            remedy="import under another name by --model-name, or remove it first",
        )
    return config


def write_config(model_dir: Path, config: ModelConfig) -> None:
    """Write a model's configuration, whole or not at all."""
    new = model_dir / f".{PBTXT_NAME}.new"
    new.write_text(write_pbtxt(config), encoding="utf-8")
    os.replace(new, model_dir / PBTXT_NAME)
