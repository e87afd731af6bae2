"""Warm-up samples against the model they are for, and the bytes of their inputs."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.models.config.problems import Problems
from toutates.models.config.settings import ModelSettings, WarmupInput, WarmupSample
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import StringRows, StringTensor, join_rows
from toutates.system.errors import ConfigurationError, RequestError

__all__ = ["check_warmup", "warmup_arrays"]

WARMUP_FOLDER: Final = "warmup"


def check_warmup(settings: ModelSettings, signature: Signature, model_dir: Path, source: Path) -> None:
    """See that every sample fits the model, and that its files are there.

    Args:
        settings, signature: of the version.
        model_dir: the model's directory, with the directory ``warmup`` for files.
        source: the file to name in errors.

    Raises:
        ConfigurationError: with a line for each problem.
    """
    problems = Problems(source)
    for sample in settings.warmup:
        _check_sample(sample, settings, signature, model_dir, problems)
    problems.raise_all()


def _check_sample(
    sample: WarmupSample, settings: ModelSettings, signature: Signature, model_dir: Path, problems: Problems
) -> None:
    key = f"warmup '{sample.name}'"

    def refuse(where: str, problem: str, value: object, remedy: str) -> None:
        problems.add(key + where, problem, value, remedy)

    most = settings.batch_size if signature.batched else 1
    if sample.batch_size > most:
        refuse(" batch_size", "is more than the model takes at once", sample.batch_size, f"write at most {most}")
    by_name = {tensor.name: tensor for tensor in signature.inputs}
    missing = [name for name, tensor in by_name.items() if name not in sample.inputs and not tensor.optional]
    if missing:
        refuse(" inputs", f"lack {', '.join(missing)}", None, "name every input of the model")
    for name, own in sample.inputs.items():
        where = f" inputs['{name}']"
        tensor = by_name.get(name)
        if tensor is None:
            refuse(where, "the model has no such input", None, f"the model's inputs: {', '.join(by_name)}")
            continue
        if own.datatype != tensor.datatype.name:
            refuse(f"{where} datatype", "is not the model's", own.datatype, f"write {tensor.datatype.name}")
        if not _fits(own.shape, tensor.shape) and not (tensor.is_scalar and own.shape == ()):
            refuse(f"{where} shape", "is not the model's", list(own.shape), f"write a shape like {list(tensor.shape)}")
        if own.data == "file":
            path = model_dir / WARMUP_FOLDER / own.file
            expected = prod(own.shape) * BY_NAME[own.datatype].size
            try:
                size = path.stat().st_size
            except OSError as error:
                refuse(f"{where} file", f"cannot be read: {error.strerror}", str(path), "put the file there")
            else:
                if expected and size < expected:
                    refuse(f"{where} file", f"has {size} bytes, one row has {expected}", str(path), "correct the file")


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(want in (-1, size) for size, want in zip(shape, expected, strict=True))


def warmup_arrays(
    sample: WarmupSample, signature: Signature, model: str, model_dir: Path
) -> dict[int, npt.NDArray[Any] | StringTensor]:
    """The inputs of a sample that ``check_warmup`` has passed, as ``ModelSession.run_arrays`` takes them.

    Returns:
        By the input's index in the signature, an array or a StringTensor of the graph's shape, the batch dimension
        included; every row is the same.

    Raises:
        ConfigurationError: a file has gone, or holds what the input cannot take.
    """
    arrays: dict[int, npt.NDArray[Any] | StringTensor] = {}
    folder = model_dir / WARMUP_FOLDER
    for index, tensor in enumerate(signature.inputs):
        own = sample.inputs.get(tensor.name)
        if own is None:
            continue
        shape = tensor.to_graph(own.shape)
        if not tensor.datatype.size:
            elements = _elements(own, tensor, model, folder)
            rows = sample.batch_size if signature.batched else 1
            arrays[index] = StringTensor.of(elements * rows, (rows, *shape) if signature.batched else shape)
        else:
            row = _row(own, tensor, folder).reshape(shape)
            arrays[index] = np.stack([row] * sample.batch_size) if signature.batched else row
    return arrays


def _elements(own: WarmupInput, tensor: TensorSpec, model: str, folder: Path) -> list[bytes]:
    """The elements of one row of BYTES."""
    if own.data != "file":
        return [b""] * prod(own.shape)
    path = folder / own.file
    try:
        rows = StringRows.received(path.read_bytes(), own.shape, tensor=tensor.name, model=model)
        return join_rows([rows], own.shape).elements()
    except (OSError, RequestError) as error:
        raise ConfigurationError(f"cannot be used: {error}", source=path, remedy="correct the file") from error


def _row(own: WarmupInput, tensor: TensorSpec, folder: Path) -> npt.NDArray[Any]:
    count, datatype = prod(own.shape), tensor.datatype
    if own.data == "file":
        path = folder / own.file
        try:
            # Triton's files may hold the rows of a whole batch, or end in something else.
            return np.frombuffer(path.read_bytes(), datatype.numpy, count)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot be used: {error}", source=path, remedy="correct the file") from error
    if own.data == "zero":
        return np.zeros(count, datatype.numpy)
    rng = np.random.default_rng(count)
    if datatype.name == "BOOL":
        return rng.integers(0, 2, count).astype(np.bool_)
    if datatype.name == "BF16":
        # The upper half of a float32's bits is the bfloat16.
        return (rng.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if datatype.numpy.kind == "f":
        return rng.random(count).astype(datatype.numpy)
    return rng.integers(0, 100, count).astype(datatype.numpy)
