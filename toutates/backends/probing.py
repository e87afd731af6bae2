"""A probe when a version is loaded: whether its rows depend on each other, so that requests must not share a run.

Names of dimensions prove nothing, and neither does an open first one: a graph may sort, sum or filter along it. So
different random rows are run together and one by one, and what comes of them is compared. That is decided here alone;
whoever joins rows asks the version (``Servable.joins``).

A graph that gives another number of rows is never joined: nobody could tell whose they are. One whose values differ is
not, unless the configuration says itself that its rows do not depend on each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import isfinite, prod
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from toutates.models.config.settings import ModelSettings
from toutates.protocol.datatypes import Datatype
from toutates.protocol.signature import Signature
from toutates.protocol.strings import EncodedStrings, StringTensor
from toutates.system.errors import RequestError

__all__ = ["NOT_TRIED", "GraphFacts", "Rows", "Verdict", "probe", "sample_lengths"]

#: The rows of one input, by its index; the outputs of a run, in the signature's order.
Inputs = Mapping[int, npt.NDArray[Any] | StringTensor]
Arrays = Sequence[npt.NDArray[Any] | EncodedStrings]

#: A version one of whose rows takes longer is not probed.
LONG_ROW_NS: Final = 250_000_000
#: What probing a version may take.
_MOST_NS: Final = 1_000_000_000
#: Rows that are run together, and those of models of which four would take too long.
_ROWS: Final = 4
_FEW_ROWS: Final = 2
#: Lengths that open dimensions are tried with.
_LENGTHS: Final = (1, 8, 64, 224)
#: Whole numbers are below these: most are indices or pixels. The lesser ones are valid nearly everywhere.
_MOST_WHOLE: Final = 16
_MOST_OF_A_BYTE: Final = 256
_LEAST_WHOLE: Final = 2
#: How much floats may differ, as a part of the output's largest magnitude, and in graphs that are not exact.
_EXACT: Final = 0.01
_INEXACT: Final = 0.1
#: Which part of whole numbers, booleans and texts may differ.
_DISCRETE: Final = 0.25
#: Prime, so that rows of usual sizes are different parts of the pool.
_POOL_SIZE: Final = 4_093
#: Rows are of different magnitude, and one of them has negative numbers too.
_SCALES: Final = np.array([1, 1, 0.25, 2], np.float32)
_NEGATIVE: Final = 1

#: What the rows that are run together may take: a batch has no more.
_MOST_BYTES: Final = 64 * 1024 * 1024

NOT_TRIED: Final = "whether its rows depend on each other was not tried: "


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a model's file says of its operators.

    Attributes:
        is_random: whether some of them draw random numbers.
        is_inexact: whether the model quantizes, or computes in FP16 or BF16.
    """

    is_random: bool = False
    is_inexact: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe has found.

    Attributes:
        joins: whether rows of several requests may share a run.
        warning: what the operator should know; "" for nothing.
        skipped: why nothing was tried, for ``toutates check``; "" where something was.
    """

    joins: bool = True
    warning: str = ""
    skipped: str = ""


class Rows(Protocol):
    """Runs rows of a version."""

    def run_arrays(self, inputs: Inputs) -> Any:
        """Run the rows of one request. Raises RequestError where the run failed."""
        ...


class _NoDraw(Exception):
    """A draw whose single rows cannot be run."""


class _Depends(Exception):
    """Rows cannot be joined, whatever their values."""


def probe(
    session: Rows,
    signature: Signature,
    *,
    row_ns: int,
    says_joined: str = "",
    lengths: Mapping[int, tuple[int, ...]] | None = None,
    facts: Callable[[], GraphFacts] = GraphFacts,
    run_joined: Callable[[Inputs], Arrays] | None = None,
    uncounted: Sequence[int] = (),
    joint_rows: int = 0,
) -> Verdict:
    """Find whether the rows of a version depend on each other. Blocks, for a second at most.

    Args:
        session: runs the rows of one request.
        signature: of the runs.
        row_ns: how long a run of one row takes, nanoseconds; 0 if that is not known.
        says_joined: the key by which the configuration says that rows are independent; "" where it does not.
        lengths: shapes of one row that the configuration gives, by the input's index; None for none.
        facts: finds out what the graph is made of. Called where values differ.
        run_joined: runs rows that are requests of their own; None for ``session.run_arrays``.
        uncounted: indices of outputs that have not a row for each row, and are divided otherwise.
        joint_rows: that are run together; 0 for as many as time allows. Those that are run one by one are no more.
    """
    if not signature.batched:
        return Verdict()
    if row_ns > LONG_ROW_NS:
        text = f"{NOT_TRIED}a row takes {row_ns / 1e6:.0f} ms, more than {LONG_ROW_NS // 1_000_000}"
        return Verdict(skipped=text)
    few = 2 * _ROWS * row_ns > _MOST_NS
    own = _Probe(session, signature, run_joined or session.run_arrays, uncounted, lengths)
    own.joint_rows = joint_rows or (_FEW_ROWS if few else _ROWS)
    own.single_rows = min(own.joint_rows, _FEW_ROWS if few else _ROWS)
    began_ns = time.monotonic_ns()
    try:
        own.prepare(began_ns + _MOST_NS)
        differences = [own.difference(0)]
        if max(differences[0][:2]) > 1:
            found = facts()
            if found.is_random:
                return Verdict()
            took_ns = time.monotonic_ns() - began_ns
            for draw in (1, 2):
                if (draw + 1) * took_ns > _MOST_NS:
                    break
                try:
                    differences.append(own.difference(draw))
                except _NoDraw:
                    continue
            if _median(differences, found) > 1:
                return _depend(own.worst(differences), says_joined)
    except _NoDraw as error:
        return Verdict(skipped=f"{NOT_TRIED}{error}")
    except _Depends as error:
        return Verdict(False, f"rows depend on each other: {error}, so that each request runs alone; {_SAY_SO}")
    return Verdict()


def sample_lengths(settings: ModelSettings, signature: Signature) -> Mapping[int, tuple[int, ...]] | None:
    """The shape of a row of each input in the first warm-up sample, by the input's index; None without one."""
    if not settings.warmup:
        return None
    given = settings.warmup[0].inputs
    return {
        index: tensor.to_graph(given[tensor.name].shape)
        for index, tensor in enumerate(signature.inputs)
        if tensor.name in given
    }


_SAY_SO: Final = (
    "write `max_batch_size: 0` in config.pbtxt (`batching: false` in config.yaml), and clients see the model's own "
    "dimensions"
)


def _depend(output: str, says_joined: str) -> Verdict:
    what = f"output '{output}' has other values for rows that are run together than for the same rows one by one"
    if says_joined:
        return Verdict(True, f"{what}; requests are joined, because `{says_joined}` says so")
    return Verdict(
        False,
        f"rows depend on each other: {what}, so that each request runs alone; if these values are good as well, write "
        "`dynamic_batching { }` in config.pbtxt (`batching: true` in config.yaml), else `max_batch_size: 0` "
        "(`batching: false`)",
    )


def _median(differences: Sequence[tuple[float, ...]], facts: GraphFacts) -> float:
    """The median over the draws of the largest difference, as a part of what is allowed."""
    scale = _EXACT / _INEXACT if facts.is_inexact else 1.0
    largest = sorted([max(exact * scale, discrete) for exact, discrete in [own[:2] for own in differences]])
    return largest[(len(largest) - 1) // 2] if len(largest) % 2 else max(largest[len(largest) // 2 - 1 :])


class _Probe:
    """The draws of one version."""

    def __init__(
        self,
        session: Rows,
        signature: Signature,
        run_joined: Callable[[Inputs], Arrays],
        uncounted: Sequence[int],
        lengths: Mapping[int, tuple[int, ...]] | None,
    ) -> None:
        self._run, self._run_joined = session.run_arrays, run_joined
        self._signature = signature
        self._uncounted = uncounted
        self._lengths = lengths
        self._shapes: list[tuple[int, tuple[int, ...]]] = []
        self._is_narrow = False
        #: of the first draw: its inputs, and what its first row has come to
        self._inputs: dict[int, npt.NDArray[Any] | StringTensor] = {}
        self._first: Arrays | None = None
        self._worst = 0
        self.joint_rows = self.single_rows = 0

    def prepare(self, until_ns: int) -> None:
        """Find shapes and values with which a row runs.

        Raises:
            _NoDraw: there are none.
        """
        inputs = self._signature.inputs
        given = self._lengths
        is_open = given is None and any([-1 in tensor.graph_shape for tensor in inputs])
        has_whole = any([tensor.datatype.numpy.kind in "iu" and tensor.datatype.name != "BF16" for tensor in inputs])
        problem = ""
        for length in _LENGTHS if is_open else _LENGTHS[:1]:
            self._shapes = [
                (index, given[index] if given is not None else _closed(tensor.graph_shape, length))
                for index, tensor in enumerate(inputs)
                if not tensor.optional
            ]
            row_bytes = sum([prod(shape) * (inputs[index].datatype.size or 16) for index, shape in self._shapes])
            if row_bytes * self.joint_rows > _MOST_BYTES:
                problem = problem or f"{self.joint_rows} rows take more than {_MOST_BYTES >> 20} MiB"
                break
            for narrow in (False, True) if has_whole else (False,):
                self._is_narrow = narrow
                self._inputs = self._draw(0)
                try:
                    self._first = self._run(_row(self._inputs, 0))
                except RequestError as error:
                    problem = str(error)
                    if time.monotonic_ns() > until_ns:
                        raise _NoDraw(f"no random row runs: {problem[:300]}") from None
                    continue
                if any(map(_size_of, self._first)) or _has_other_rows(self._first, 1, self._uncounted):
                    return
                break  # nothing can be told by outputs without elements
        if self._first is None:
            raise _NoDraw(f"no random row runs: {problem[:300]}")

    def difference(self, draw: int) -> tuple[float, float, int]:
        """How much the rows of a draw differ, as parts of what is allowed: floats, others, and of which output.

        Raises:
            _NoDraw: a single row does not run.
            _Depends: another number of rows comes, or they do not run together.
        """
        inputs = self._inputs if draw == 0 else self._draw(draw)
        try:
            singles = [self._first] if draw == 0 and self._first is not None else []
            singles += [self._run(_row(inputs, row)) for row in range(len(singles), self.single_rows)]
        except RequestError as error:
            raise _NoDraw(f"a single random row does not run: {str(error)[:300]}") from None
        for own in singles:
            self._check_rows(own, 1)
        try:
            joint = self._run_joined(inputs)
        except RequestError as error:
            raise _Depends(f"{self.joint_rows} rows do not run together: {str(error)[:300]}") from None
        self._check_rows(joint, self.joint_rows)
        floats = others = 0.0
        worst = 0
        for index, together in enumerate(joint):
            apart = [own[index] for own in singles]
            found, is_float = _differ(together, apart, self.joint_rows, self._signature.outputs[index].datatype.name)
            if found > max(floats, others):
                worst = index
            if is_float:
                floats = max(floats, found)
            else:
                others = max(others, found)
        return floats, others, worst

    def worst(self, differences: Sequence[tuple[float, float, int]]) -> str:
        """Name of the output that differs most in the first draw."""
        return self._signature.outputs[differences[0][2]].name

    def _check_rows(self, outputs: Arrays, rows: int) -> None:
        other = _has_other_rows(outputs, rows, self._uncounted)
        if other:
            index, shape = other[0]
            name = self._signature.outputs[index].name
            raise _Depends(f"output '{name}' is {list(shape)} for {rows} row{'s' if rows > 1 else ''}")

    def _draw(self, draw: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
        return {
            index: _random(
                self._signature.inputs[index].datatype, (self.joint_rows, *shape), at + 7 * draw, self._is_narrow
            )
            for at, (index, shape) in enumerate(self._shapes)
        }


# --- rows ------------------------------------------------------------------------------------------------------------


@cache
def _pool() -> npt.NDArray[np.float32]:
    """Random numbers from 0 to 1, the same in every process: what a probe finds does not differ from load to load."""
    numbers: npt.NDArray[np.float32] = np.random.default_rng(1729).random(_POOL_SIZE, np.float32)
    numbers.flags.writeable = False
    return numbers


def _random(datatype: Datatype, shape: tuple[int, ...], at: int, narrow: bool) -> npt.NDArray[Any] | StringTensor:
    """Random rows of an input, whose range is valid for most models. They are not to be changed."""
    return _small_random(datatype, shape, at, narrow) if prod(shape) < _POOL_SIZE else _new(datatype, shape, at, narrow)


#: Many models have inputs of the same few shapes.
@lru_cache(64)
def _small_random(datatype: Datatype, shape: tuple[int, ...], at: int, narrow: bool) -> Any:
    return _new(datatype, shape, at, narrow)


def _new(datatype: Datatype, shape: tuple[int, ...], at: int, narrow: bool) -> npt.NDArray[Any] | StringTensor:
    pool, count = _pool(), prod(shape)
    start = 211 * at % (_POOL_SIZE >> 1)
    numbers = pool[start : start + count] if start + count <= _POOL_SIZE else np.resize(np.roll(pool, -start), count)
    if not datatype.size:
        # Texts that are numbers as well.
        return StringTensor.of([b"%d" % number for number in (numbers * 1_000).astype(np.int64).tolist()], shape)
    kind = "f" if datatype.name == "BF16" else datatype.numpy.kind
    if kind == "b":
        return (numbers < 0.5).reshape(shape)
    if kind in "iu":
        most = _LEAST_WHOLE if narrow else _MOST_OF_A_BYTE if datatype.name == "UINT8" else _MOST_WHOLE
        return (numbers * most).astype(datatype.numpy).reshape(shape)
    rows = numbers.reshape(shape[0], -1) * np.resize(_SCALES, shape[0])[:, None]
    rows[_NEGATIVE::_ROWS] = 2 * rows[_NEGATIVE::_ROWS] - 1
    rows = rows.reshape(shape)
    if datatype.name == "BF16":
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype(datatype.numpy, copy=False)


def _row(inputs: Mapping[int, npt.NDArray[Any] | StringTensor], row: int) -> Inputs:
    return {index: _row_of(array, row) for index, array in inputs.items()}


def _row_of(array: npt.NDArray[Any] | StringTensor, row: int) -> npt.NDArray[Any] | StringTensor:
    if isinstance(array, StringTensor):
        size = prod(array.shape[1:])
        return StringTensor.of(array.elements()[row * size : (row + 1) * size], (1, *array.shape[1:]))
    return array[row : row + 1]


def _closed(shape: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple([length if size == -1 else size for size in shape])


# --- outputs ---------------------------------------------------------------------------------------------------------


def _size_of(array: npt.NDArray[Any] | EncodedStrings) -> int:
    return prod(array.shape)


def _has_other_rows(outputs: Arrays, rows: int, uncounted: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """The outputs that have another number of rows, and their shapes."""
    return [
        (index, array.shape)
        for index, array in enumerate(outputs)
        if array.shape[:1] != (rows,) and index not in uncounted
    ]


def _differ(
    together: npt.NDArray[Any] | EncodedStrings,
    apart: Sequence[npt.NDArray[Any] | EncodedStrings],
    rows: int,
    datatype: str,
) -> tuple[float, bool]:
    """How much an output differs, as a part of what is allowed, and whether it is of floats."""
    if isinstance(together, EncodedStrings):
        return _texts_differ(together, [one for one in apart if isinstance(one, EncodedStrings)], rows), False
    arrays = [one for one in apart if isinstance(one, np.ndarray)]
    joined = np.concatenate(arrays, axis=0) if arrays[0].ndim else np.stack(arrays)
    part = together[: len(joined)] if together.ndim and len(together) == rows else together
    if part.shape != joined.shape:
        return float("inf"), False
    if datatype == "BF16":
        part, joined = _widened(part), _widened(joined)
    if part.dtype.kind != "f":
        return (np.count_nonzero(part != joined) / (part.size or 1)) / _DISCRETE, False
    if not part.size:
        return 0.0, True
    if part.dtype.itemsize < 4:
        part, joined = part.astype(np.float32), joined.astype(np.float32)
    # Finite numbers have a finite sum of squares, and NumPy's dot is the quickest way to know.
    flat = part.reshape(-1)
    if isfinite(flat.dot(flat)):
        difference = float(np.abs(part - joined).max())
        if not difference:
            return 0.0, True
        most = float(max(np.abs(part).max(), np.abs(joined).max()))
        if isfinite(difference):
            return difference / (_EXACT * most), True
    return _differ_unbounded(part, joined), True


def _differ_unbounded(part: npt.NDArray[Any], joined: npt.NDArray[Any]) -> float:
    """``_differ`` where some values are infinite, or no numbers."""
    same = (part == joined) | (np.isnan(part) & np.isnan(joined))
    finite = np.isfinite(part) & np.isfinite(joined)
    if not (same | finite).all():
        return float("inf")
    if not finite.any():
        return 0.0
    one, other = part[finite], joined[finite]
    most = max(np.abs(one).max(), np.abs(other).max())
    difference = np.abs(one - other).max()
    return float(difference / (_EXACT * most)) if difference else 0.0


def _texts_differ(together: EncodedStrings, apart: Sequence[EncodedStrings], rows: int) -> float:
    joined = [text for one in apart for text in _texts(one)]
    own = _texts(together)
    if len(own) * len(apart) != len(joined) * rows:
        return float("inf")
    differing = sum([text != other for text, other in zip(own, joined, strict=False)])
    return differing / (len(joined) or 1) / _DISCRETE


def _texts(strings: EncodedStrings) -> list[bytes]:
    bounds = [int(bound) for bound in strings.bounds]
    return [strings.content[start + 4 : end] for start, end in pairwise(bounds)]


def _widened(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """BF16 as FP32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
