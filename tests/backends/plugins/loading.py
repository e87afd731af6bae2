"""Versions of models whose backends are of packages, as a server loads and a command inspects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toutates.backends.onnx.opening import SessionOptions
from toutates.models.kinds import inspect_version, load_version
from toutates.models.repository import scan_model
from toutates.server.kinds import kinds_of_models
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.placement import Placement

__all__ = ["all_kinds", "inspect", "load", "refused"]


def all_kinds() -> Any:
    """All kinds of models that a server has."""
    return kinds_of_models(SessionOptions())


def load(root: Path, model: str = "m", kinds: Any = None) -> Any:
    """Load the version of a model (``ServedVersion``).

    Args:
        root: folder of its repository.
        model: its name.
        kinds: that it may be of; None for all.
    """
    folder = scan_model(root / model)
    assert not folder.problem, folder.problem
    return load_version(kinds or all_kinds(), model, folder.versions[-1], overridden=False, placement=Placement())


def inspect(root: Path, model: str = "m") -> Any:
    folder = scan_model(root / model)
    return inspect_version(all_kinds(), model, folder.versions[-1], try_warmup=True)


def refused(root: Path, model: str = "m") -> str:
    with pytest.raises((ModelLoadError, ConfigurationError)) as caught:
        load(root, model)
    assert "\n" not in str(caught.value)
    return str(caught.value)
