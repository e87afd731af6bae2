"""What requests hold: random values by the model's metadata, zeros, or values of a file.

Files are JSON as perf_analyzer reads it, or NPZ with an array for each input. All arrays have the batch's axis where
the model batches. BYTES are arrays of objects of bytes; BF16, which NumPy lacks, are uint16 of the same bits.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.bench.calls import Refused
from toutates.bench.metadata import ModelFacts, TensorFacts
from toutates.protocol.datatypes import BY_NAME
from toutates.system.errors import ConfigurationError

__all__ = ["RANDOM", "ZEROS", "Contents", "DataSettings", "check_source", "make_contents"]

Array = npt.NDArray[Any]

RANDOM: Final = "random"
ZEROS: Final = "zero"
#: Elements of an input; more are a mistake in --shape.
_MOST_ELEMENTS: Final = 2**28
#: Different requests of a file.
_MOST_ENTRIES: Final = 4_096
_WORDS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """How contents are made.

    Attributes:
        source: RANDOM, ZEROS, or a file.
        batch: rows of a request to a model that batches; None for what shapes say, else 1.
        shapes: of inputs; with ``batch`` without the batch's axis, as perf_analyzer has them. Other open axes are 1.
        string_length: of random strings; None for numbers as text.
        string: that all elements of BYTES are; None for random ones.
        different: requests of random values.
        most_int: random integers are below.
    """

    source: str = RANDOM
    batch: int | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    string_length: int | None = None
    string: str | None = None
    different: int = 4
    most_int: int = 100


@dataclass(frozen=True, slots=True)
class Contents:
    """Of one request.

    Attributes:
        inputs: by their names, in the model's order.
        expected: outputs that a file says, by their names; flat.
    """

    inputs: Mapping[str, Array]
    expected: Mapping[str, Array] = field(default_factory=dict)


def check_source(source: str) -> None:
    """Whether a source is one, before a server is asked.

    Raises:
        ConfigurationError: it is a file that cannot be read.
    """
    if source in (RANDOM, ZEROS):
        return
    problem = _problem_of_file(source)
    if problem:
        raise ConfigurationError(
            f"cannot be read: {problem}",
            key="--data",
            value=source,
            remedy=f"write {RANDOM}, {ZEROS}, or the name of a file",
        )


def _problem_of_file(name: str) -> str:
    """Why a file cannot be read; "" if it can. It is not opened: what a pipe holds is read once."""
    try:
        mode = os.stat(name).st_mode
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISDIR(mode):
        return os.strerror(errno.EISDIR)
    if not os.access(name, os.R_OK):
        return os.strerror(errno.EACCES)
    return ""


def make_contents(facts: ModelFacts, settings: DataSettings, rng: np.random.Generator) -> list[Contents]:
    """Contents of requests to a model.

    Raises:
        Refused: a shape, a datatype or the file does not fit the model.
    """
    if not facts.inputs:
        raise Refused(f"the server does not say which inputs model '{facts.name}' has, so that no request can be made")
    names = ", ".join(repr(one.name) for one in facts.inputs)
    if unknown := settings.shapes.keys() - {one.name for one in facts.inputs}:
        raise Refused(f"model '{facts.name}' has no input {sorted(unknown)[0]!r}; it has {names}")
    if settings.batch and settings.batch > 1 and not facts.batches:
        raise Refused(f"model '{facts.name}' does not batch, so that a batch of {settings.batch} cannot be sent")
    for one in facts.inputs:
        if one.datatype not in BY_NAME:
            raise Refused(f"the server has an input of type '{one.datatype}', of which no values can be made")
    if settings.source in (RANDOM, ZEROS):
        shapes = {one.name: _shape(one, facts, settings) for one in facts.inputs}
        make = _random if settings.source == RANDOM else _zeros
        count = settings.different if settings.source == RANDOM else 1
        return [
            Contents({one.name: make(one.datatype, shapes[one.name], settings, rng) for one in facts.inputs})
            for _ in range(count)
        ]
    path = Path(settings.source)
    try:
        made = _from_npz(path, facts, settings) if path.suffix == ".npz" else _from_json(path, facts, settings)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}") from None
    if not made:
        raise Refused(f"{path}: it holds no data")
    return made


def _shape(one: TensorFacts, facts: ModelFacts, settings: DataSettings) -> list[int]:
    given = settings.shapes.get(one.name)
    if given is not None and settings.batch and facts.batches:
        shape = [settings.batch, *given]
    elif given is not None:
        shape = list(given)
    else:
        shape = [max(axis, 1) if axis < 0 else axis for axis in one.shape]
        if settings.batch and facts.batches:
            shape[0] = settings.batch
    if len(shape) != len(one.shape) or any(
        axis >= 0 and axis != wanted for axis, wanted in zip(one.shape, shape, strict=True)
    ):
        raise Refused(
            f"input '{one.name}' of model '{facts.name}' has the shape {list(one.shape)}, which {shape} is not"
        )
    if prod(shape) > _MOST_ELEMENTS:
        raise Refused(f"input '{one.name}' would have {prod(shape)} elements, at most {_MOST_ELEMENTS} are made")
    return shape


def _random(datatype: str, shape: Sequence[int], settings: DataSettings, rng: np.random.Generator) -> Array:
    if datatype == "BYTES":
        return _strings(shape, settings, rng)
    if datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if datatype == "BF16":
        return (rng.standard_normal(shape).astype("<f4").view("<u4") >> 16).astype("<u2")
    wanted = BY_NAME[datatype].numpy
    if wanted.kind == "f":
        return rng.standard_normal(shape).astype(wanted.newbyteorder("<"))
    return rng.integers(0, settings.most_int, shape).astype(wanted.newbyteorder("<"))


def _strings(shape: Sequence[int], settings: DataSettings, rng: np.random.Generator) -> Array:
    count = prod(shape)
    if settings.string is not None:
        made = [settings.string.encode()] * count
    elif settings.string_length is None:
        made = [b"%d" % number for number in rng.integers(0, 10**6, count).tolist()]
    else:
        made = [_WORDS[rng.integers(0, _WORDS.size, settings.string_length)].tobytes() for _ in range(count)]
    return _objects(made, shape)


def _objects(values: Sequence[bytes], shape: Sequence[int]) -> Array:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)


def _zeros(datatype: str, shape: Sequence[int], settings: DataSettings, rng: np.random.Generator) -> Array:
    del rng
    if datatype == "BYTES":
        return _objects([(settings.string or "").encode()] * prod(shape), shape)
    return np.zeros(shape, BY_NAME[datatype].numpy.newbyteorder("<"))


def _from_npz(path: Path, facts: ModelFacts, settings: DataSettings) -> list[Contents]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise Refused(f"{path}: it is no NPZ file that can be read: {error}") from None
    _check_names(path, facts, arrays)
    cast = {one.name: _cast(path, one, arrays[one.name]) for one in facts.inputs}
    if not facts.batches:
        return [Contents(cast)]
    rows = {name: len(array) for name, array in cast.items() if array.ndim}
    if len(set(rows.values())) != 1 or len(rows) != len(cast):
        raise Refused(f"{path}: its arrays have different numbers of rows: {rows}")
    batch, count = settings.batch or 1, next(iter(rows.values()))
    starts = range(0, count - batch + 1, batch)
    if not starts:
        raise Refused(f"{path}: it has {count} rows, fewer than the batch of {batch}")
    return [
        Contents({name: array[start : start + batch] for name, array in cast.items()})
        for start in starts[:_MOST_ENTRIES]
    ]


def _cast(path: Path, one: TensorFacts, array: Array) -> Array:
    where = f"{path}: array '{one.name}'"
    if one.datatype == "BYTES":
        if array.dtype.kind not in "SU":
            raise Refused(f"{where} has the type {array.dtype}, expected strings")
        texts = [text if isinstance(text, bytes) else text.encode() for text in array.ravel().tolist()]
        made = _objects(texts, array.shape)
    else:
        wanted = BY_NAME[one.datatype].numpy.newbyteorder("<")
        if not np.can_cast(array.dtype, wanted, "same_kind"):
            raise Refused(f"{where} has the type {array.dtype}, expected {one.datatype}")
        made = array.astype(wanted)
    if made.ndim != len(one.shape) or any(
        axis >= 0 and axis != had for axis, had in zip(one.shape, made.shape, strict=True)
    ):
        raise Refused(f"{where} has the shape {list(made.shape)}, expected {list(one.shape)}")
    return made


def _check_names(path: Path, facts: ModelFacts, given: Mapping[str, object]) -> None:
    names = {one.name for one in facts.inputs}
    if given.keys() != names:
        raise Refused(f"{path}: it has values for {sorted(given)}, model '{facts.name}' has the inputs {sorted(names)}")


def _from_json(path: Path, facts: ModelFacts, settings: DataSettings) -> list[Contents]:
    try:
        document = json.loads(path.read_bytes())
        entries = _flat(document["data"])
        expected = _flat(document.get("validation_data", []))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Refused(f'{path}: expected JSON with a list "data" of objects, one for each request') from None
    if expected and len(expected) != len(entries):
        raise Refused(f'{path}: "data" has {len(entries)} entries, and "validation_data" {len(expected)}')
    entries = entries[:_MOST_ENTRIES]
    rows: list[dict[str, Array]] = []
    for place, entry in enumerate(entries):
        _check_names(path, facts, entry)
        rows.append(
            {one.name: _value(f"{path}: entry {place}", one, entry[one.name], facts, settings) for one in facts.inputs}
        )
    said = [{name: _flat_numbers(value) for name, value in entry.items()} if entry else {} for entry in expected] or [
        {}
    ] * len(rows)
    if not facts.batches:
        return [Contents(row, outputs) for row, outputs in zip(rows, said, strict=False)]
    batch = settings.batch or 1
    made = []
    for start in range(len(rows)):
        chosen = [(start + step) % len(rows) for step in range(batch)]
        try:
            inputs = {one.name: np.stack([rows[at][one.name] for at in chosen]) for one in facts.inputs}
        except ValueError:
            raise Refused(f"{path}: entries {chosen} differ in shape, and cannot be one batch") from None
        names = said[start].keys()
        made.append(Contents(inputs, {name: np.concatenate([said[at][name] for at in chosen]) for name in names}))
    return made


def _flat(entries: Any) -> list[dict[str, Any]]:
    """The entries; those of sequences, which are lists of their own, one after another."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        found += _flat(entry) if isinstance(entry, list) else [dict(entry)]
    return found


def _value(where: str, one: TensorFacts, value: Any, facts: ModelFacts, settings: DataSettings) -> Array:
    """One entry's values of an input, without the batch's axis."""
    where = f"{where}: input '{one.name}'"
    open_shape = one.shape[1:] if facts.batches else one.shape
    shape = settings.shapes.get(one.name)
    if shape is not None and facts.batches and not settings.batch:
        shape = shape[1:]
    content = value
    if isinstance(value, dict):
        shape = value.get("shape", shape)
        content = value.get("content", value)
    if shape is None:
        shape = [max(axis, 1) if axis < 0 else axis for axis in open_shape]
    try:
        shape = [int(axis) for axis in shape]
        if isinstance(content, dict):
            made = _from_octets(base64.b64decode(content["b64"], validate=True), one, shape)
        elif one.datatype == "BYTES":
            texts = [text if isinstance(text, bytes) else str(text).encode() for text in _leaves(content)]
            made = _objects(texts, shape)
        else:
            made = np.array(_leaves(content), BY_NAME[one.datatype].numpy.newbyteorder("<")).reshape(shape)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise Refused(f"{where} of type {one.datatype} and shape {list(shape)} cannot be made: {error}") from None
    if len(shape) != len(open_shape) or any(
        axis >= 0 and axis != had for axis, had in zip(open_shape, shape, strict=True)
    ):
        batch = " (without the batch)" if len(open_shape) < len(one.shape) else ""
        raise Refused(f"{where} has the shape {list(shape)}, expected {list(open_shape)}{batch}")
    return made


def _from_octets(octets: bytes, one: TensorFacts, shape: Sequence[int]) -> Array:
    if one.datatype == "BYTES":
        return _objects([octets], shape)
    return np.frombuffer(octets, BY_NAME[one.datatype].numpy.newbyteorder("<")).reshape(shape)


def _leaves(value: Any) -> list[Any]:
    """The elements of nested lists, in row-major order."""
    if not isinstance(value, list):
        return [value]
    if not any(isinstance(one, list) for one in value):
        return value
    return [leaf for one in value for leaf in _leaves(one)]


def _flat_numbers(value: Any) -> Array:
    content = value.get("content", []) if isinstance(value, dict) else value
    leaves = _leaves(content)
    if any(isinstance(one, str) for one in leaves):
        return _objects([str(one).encode() for one in leaves], [len(leaves)])
    return np.array(leaves)
