"""Loads a version as a server does, and runs it as an executor does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.plugins.kind import PluginKind
from toutates.models.config.configuration import load_configuration
from toutates.models.inspection import InspectedVersion
from toutates.models.kinds import inspect_version
from toutates.models.repository import scan_model
from toutates.server.kinds import kinds_of_models
from toutates.system.errors import ConfigurationError, ModelLoadError

__all__ = ["Arrays", "inspect", "opened", "predict", "refused"]


def inspect(root: Path, model: str = "m") -> InspectedVersion:
    """What ``toutates check`` finds of the newest version."""
    folder = scan_model(root / model)
    assert not folder.problem, folder.problem
    return inspect_version(kinds_of_models(SessionOptions()), model, folder.versions[-1], try_warmup=True)


def refused(root: Path, model: str = "m") -> str:
    """Why the newest version cannot be served."""
    with pytest.raises((ModelLoadError, ConfigurationError)) as caught:
        inspect(root, model)
    return str(caught.value)


#: Tensors by name.
Arrays = Mapping[str, npt.NDArray[Any]]


def predict(root: Path, inputs: Arrays, model: str = "m") -> dict[str, npt.NDArray[Any]]:
    """The outputs of one run, by name."""
    with opened(root, model) as run:
        return run(inputs)


@contextmanager
def opened(root: Path, model: str = "m") -> Iterator[Callable[[Arrays], dict[str, npt.NDArray[Any]]]]:
    """What gives the outputs of one run."""
    folder = scan_model(root / model)
    kind = PluginKind()
    loaded = kind.open(model, load_configuration(folder.versions[-1], kind.backends))
    signature = loaded.signature

    def run(inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        arrays = {index: inputs[tensor.name] for index, tensor in enumerate(signature.inputs)}
        outputs = loaded.plain[0].run_arrays(arrays)
        return {tensor.name: np.asarray(output) for tensor, output in zip(signature.outputs, outputs, strict=True)}

    try:
        yield run
    finally:
        loaded.close()
