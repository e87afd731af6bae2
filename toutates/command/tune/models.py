"""Which models are tuned: those of the folders that are named, of a repository, or the members of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toutates.command.config import print_warnings, require_model_dir
from toutates.models.repository import VersionFolder, scan, scan_model
from toutates.system.errors import ConfigurationError
from toutates.tune.declared import Declared
from toutates.tune.server import CONFIG_NAME, PBTXT_NAME
from toutates.tune.space import ONNX

__all__ = ["Found", "OneModel", "find_models"]


@dataclass(frozen=True, slots=True)
class OneModel:
    """A model.

    Attributes:
        path: its folder.
        version: of it.
        base: all keys of its configuration.
        declared: its config.pbtxt, where that has to say them; None where a config.yaml can.
    """

    path: Path
    version: VersionFolder
    base: dict[str, Any]
    declared: Declared | None = None

    @property
    def config_path(self) -> Path:
        """Where its configuration lies, if there is one."""
        return self.version.path / CONFIG_NAME if self.declared is None else self.path / PBTXT_NAME


@dataclass(slots=True)
class Found:
    """The models of a tuning.

    Attributes:
        tuned: whose keys are changed, by their names.
        served: as they are: ensembles of these, members before what is made of them.
        asked: names of those that requests are to.
    """

    tuned: dict[str, OneModel] = field(default_factory=dict)
    served: dict[str, OneModel] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def all(self) -> dict[str, OneModel]:
        """Both."""
        return {**self.tuned, **self.served}

    def rows_of_ensembles(self, member: str) -> int:
        """The rows that a member has to take for the ensembles with it to be ready; 1 where it is in none."""
        ensembles = [one.base for one in self.served.values() if one.base["backend"] == "ensemble"]
        sizes = [base.get("batch_size", 1) for base in ensembles if member in [step["model"] for step in base["steps"]]]
        return max(sizes, default=1)


def find_models(
    folders: Sequence[Path], version: int | None, configuration: Callable[[Path, int | None, str], str]
) -> Found:
    """Find what is tuned.

    Args:
        folders: of models, or of repositories, with absolute paths.
        version: to take of the one model; None for the newest.
        configuration: gives all keys of a model's configuration: its folder, version and form.

    Raises:
        ConfigurationError: a folder is none, has no such version, or its files cannot be used.
        ModelLoadError: a graph cannot be read.
    """
    found = Found()
    members: set[str] = set()
    for folder in folders:
        require_model_dir(folder)
        models = [folder] if not scan_model(folder).passed_over else _of_repository(folder)
        for model in models:
            _add(found, model, version, configuration, members)
    found.asked = [name for name in found.asked if name not in members]
    if not found.tuned:
        raise ConfigurationError(
            "has nothing to tune",
            key="MODEL_DIR",
            value=str(folders[0]),
            remedy="name models, or ensembles of models that have some",
        )
    return found


def _of_repository(folder: Path) -> list[Path]:
    models = [one for one in scan(folder, asked_by="MODEL_DIR") if not one.passed_over]
    if not models or models[0].is_lone:
        raise ConfigurationError(
            "has neither versions nor models",
            key="MODEL_DIR",
            value=str(folder),
            remedy="name the folder of a model, such as models/NAME with 1/model.onnx in it, or of a repository",
        )
    return [one.path for one in models]


def _add(
    found: Found,
    folder: Path,
    version: int | None,
    configuration: Callable[[Path, int | None, str], str],
    members: set[str],
) -> None:
    """Add a model, and what it is made of."""
    known = found.all().get(folder.name)
    if known is not None:
        if known.path != folder:
            raise ConfigurationError(
                "two models have one name", key="MODEL_DIR", value=folder.name, remedy="tune one after the other"
            )
        if folder.name not in found.asked:
            found.asked.append(folder.name)
        return
    print_warnings(folder)
    base = yaml.safe_load(configuration(folder, version, "yaml"))
    chosen = next(one for one in reversed(scan_model(folder).versions) if version in (None, one.number))
    found.asked.append(folder.name)
    if base["backend"] == "ensemble":
        for name in dict.fromkeys(str(step["model"]) for step in base["steps"]):
            members.add(name)
            _add(found, folder.parent / name, None, configuration, members)
        found.served[folder.name] = OneModel(folder, chosen, base)
        return
    declared = None
    if base["backend"] not in ONNX and chosen.triton is not None and not (chosen.path / CONFIG_NAME).exists():
        declared = Declared(configuration(folder, version, "pbtxt"))
        base = declared.base(base)
    found.tuned[folder.name] = OneModel(folder, chosen, base, declared)
