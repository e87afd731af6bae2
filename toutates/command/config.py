"""``toutates config MODEL_DIR``: the complete configuration of a model, as config.yaml and as config.pbtxt."""

from __future__ import annotations

import sys
from pathlib import Path

from toutates.backends.onnx.inspection import ALL_DEVICES
from toutates.backends.onnx.opening import SessionOptions
from toutates.models.config.ensemble_yaml import write_ensemble
from toutates.models.config.misplaced import near_directory
from toutates.models.config.pbtxt import write_pbtxt
from toutates.models.config.yaml_writer import write_yaml
from toutates.models.graph_picture import graph_svg
from toutates.models.kinds import inspect_version
from toutates.models.repository import ModelFolder, VersionFolder, scan_model
from toutates.server.kinds import kinds_of_models
from toutates.system.errors import ConfigurationError
from toutates.system.text import one_line

__all__ = ["effective_configuration", "print_warnings", "require_model_dir"]


def print_warnings(model_dir: Path) -> None:
    """Print what was passed over in a model's directory, and may have been meant, to standard error."""
    for warning in scan_model(model_dir.absolute()).warnings:
        print(f"toutates: warning: {warning}", file=sys.stderr)


def require_model_dir(model_dir: Path) -> None:
    """Check that a path is a directory.

    Raises:
        ConfigurationError: it is no directory; the remedy names one that may have been meant.
    """
    if not model_dir.is_dir():
        near = near_directory(model_dir)
        remedy = f"did you mean '{near}'?" if near else "correct the path"
        raise ConfigurationError("is not a directory", key="MODEL_DIR", value=str(model_dir), remedy=remedy)


def effective_configuration(
    model_dir: Path,
    version: int | None,
    form: str,
    custom_op_libraries: tuple[Path, ...] = (),
    *,
    allow_pickle: bool = False,
) -> str:
    """The text to print. Saved as the file that it names, each format gives the same configuration again.

    Args:
        model_dir: the model's directory.
        version: None for the newest that is served.
        form: yaml, pbtxt, both, or graph for the picture of an ensemble.
        custom_op_libraries, allow_pickle: as for the server.

    Raises:
        ConfigurationError: there is no such version, or the files cannot be used.
        ModelLoadError: the graph cannot be read.
    """
    # An absolute path has the model's name, which config.pbtxt must agree with; "." has none.
    folder = scan_model(model_dir.absolute())
    chosen = _version(folder, version)
    kinds = kinds_of_models(SessionOptions(ALL_DEVICES, custom_op_libraries), allow_pickle=allow_pickle)
    inspected = inspect_version(kinds, folder.name, chosen)
    settings, config, triton = inspected.settings, inspected.config(), chosen.triton
    if form == "graph":
        if inspected.dependent is None:
            raise ConfigurationError(
                "is no ensemble", key="--graph", value=folder.name, remedy="name the folder of one"
            )
        return graph_svg(config)
    beside = settings.model_filename or "the model's files"
    parts: list[str] = []
    if form in ("yaml", "both"):
        parts.append(
            f"# {folder.name} version {chosen.number}: config.yaml, to lie beside {beside}\n"
            + (f"# no key for version_policy {{ {one_line(config.version_policy)} }}\n" if triton is not None else "")
            + (write_yaml(settings) if inspected.dependent is None else write_ensemble(config, settings.capacity))
        )
    if form in ("pbtxt", "both"):
        parts.append(
            f"# {folder.name} version {chosen.number}: config.pbtxt, to lie beside the version's directory\n"
            + ("# no field for padding, which only a config.yaml has\n" if settings.padding is not None else "")
            + write_pbtxt(config)
        )
    return "\n".join(parts)


def _version(folder: ModelFolder, number: int | None) -> VersionFolder:
    if folder.problem:
        raise ConfigurationError(folder.problem)
    for version in reversed(folder.versions):
        if number is None or version.number == number:
            return version
    known = ", ".join(str(version.number) for version in folder.versions)
    raise ConfigurationError(
        f"'{folder.path}' has no such version that is served", key="--version", value=number, remedy=f"it has {known}"
    )
