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
from math import prod
from statistics import median
from typing import Any, Final, NamedTuple, Protocol

from toutates.backends.differences import EXACT, INEXACT, Arrays, differ, other_rows, size_of
from toutates.backends.random_rows import Inputs, one_row, random_rows
from toutates.models.config.settings import ModelSettings
from toutates.protocol.signature import Signature
from toutates.system.errors import RequestError

__all__ = [
    "NOT_TRIED",
    "PROBED_ROWS",
    "Difference",
    "GraphFacts",
    "NoDraw",
    "NotJoined",
    "Verdict",
    "judged",
    "probe",
    "sample_lengths",
]

#: A version one of whose rows takes longer is not probed.
_LONG_ROW_NS: Final = 250_000_000
#: What probing a version may take.
_MOST_NS: Final = 1_000_000_000
#: Rows that are run together, and those of models of which four would take too long.
PROBED_ROWS: Final = 4
_FEW_ROWS: Final = 2
#: Lengths that open dimensions are tried with.
_LENGTHS: Final = (1, 8, 64, 224)
#: What the rows that are run together may take: a batch has no more.
_MOST_BYTES: Final = 64 * 1024 * 1024
#: Characters of the reason for which a run has failed.
_MOST_REASON: Final = 300

NOT_TRIED: Final = "whether its rows depend on each other was not tried: "
_SAY_SO: Final = (
    "write `max_batch_size: 0` in config.pbtxt (`batching: false` in config.yaml), and clients see the model's own "
    "dimensions"
)


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


class Difference(NamedTuple):
    """How much the rows of a draw differ, as parts of what is allowed: above 1 they depend on each other.

    Attributes:
        floats: of floats, in a graph that is exact.
        others: of whole numbers, booleans and texts.
        what: differs most.
    """

    floats: float
    others: float
    what: str


class Rows(Protocol):
    """Runs rows of a version."""

    def run_arrays(self, inputs: Inputs) -> Any:
        """Run the rows of one request. Raises RequestError where the run failed."""
        ...


class NoDraw(Exception):
    """A draw whose single rows cannot be run."""


class NotJoined(Exception):
    """Rows cannot be joined, whatever their values."""


def judged(
    difference: Callable[[int], Difference],
    *,
    row_ns: int,
    says_joined: str = "",
    facts: Callable[[], GraphFacts] = GraphFacts,
) -> Verdict:
    """What a version's draws come to. Blocks, for a second at most.

    Args:
        difference: how much the rows of a draw differ, of this number from 0. It raises NoDraw and NotJoined.
        row_ns: how long a run of one row takes, nanoseconds; 0 if that is not known.
        says_joined: the key by which the configuration says that rows are independent; "" where it does not.
        facts: finds out what the graph is made of. Called where values differ.
    """
    if row_ns > _LONG_ROW_NS:
        text = f"{NOT_TRIED}a row takes {row_ns / 1e6:.0f} ms, more than {_LONG_ROW_NS // 1_000_000}"
        return Verdict(skipped=text)
    began_ns = time.monotonic_ns()
    try:
        found = [difference(0)]
        if max(found[0].floats, found[0].others) <= 1:
            return Verdict()
        graph = facts()
        if graph.is_random:
            return Verdict()
        took_ns = time.monotonic_ns() - began_ns
        for draw in (1, 2):
            if 3 * took_ns > _MOST_NS:
                break
            try:
                found.append(difference(draw))
            except NoDraw:
                continue
        scale = EXACT / INEXACT if graph.is_inexact else 1.0
        if median([max(one.floats * scale, one.others) for one in found]) > 1:
            return _depend(found[0].what, says_joined)
    except NoDraw as error:
        return Verdict(skipped=f"{NOT_TRIED}{error}")
    except NotJoined as error:
        return Verdict(False, f"rows depend on each other: {error}, so that each request runs alone; {_SAY_SO}")
    return Verdict()


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
    on_run: Callable[[Arrays, int], object] = lambda outputs, rows: None,
) -> Verdict:
    """Find whether the rows of a version depend on each other. Blocks, for a second at most.

    Args:
        session: runs the rows of one request.
        signature: of the runs.
        row_ns, says_joined, facts: see ``judged``.
        lengths: shapes of one row that the configuration gives, by the input's index; None for none.
        run_joined: runs rows that are requests of their own; None for ``session.run_arrays``.
        uncounted: indices of outputs that have not a row for each row, and are divided otherwise.
        joint_rows: that are run together; 0 for as many as time allows. Those that are run one by one are no more.
        on_run: takes what rows have come to that were run together, and how many they were.
    """
    if not signature.batched:
        return Verdict()
    rows = _FEW_ROWS if 2 * PROBED_ROWS * row_ns > _MOST_NS else PROBED_ROWS
    own = _Probe(session, signature, run_joined or session.run_arrays, uncounted, lengths, joint_rows or rows, rows)
    own.on_run = on_run
    return judged(own.difference, row_ns=row_ns, says_joined=says_joined, facts=facts)


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


def _depend(what: str, says_joined: str) -> Verdict:
    """The verdict on rows whose values differ."""
    what = f"{what} has other values for rows that are run together than for the same rows one by one"
    if says_joined:
        return Verdict(True, f"{what}; requests are joined, because `{says_joined}` says so")
    return Verdict(
        False,
        f"rows depend on each other: {what}, so that each request runs alone; if these values are good as well, write "
        "`dynamic_batching { }` in config.pbtxt (`batching: true` in config.yaml), else `max_batch_size: 0` "
        "(`batching: false`)",
    )


class _Probe:
    """The draws of one version.

    Args:
        session, signature, uncounted, lengths: see ``probe``.
        run_joined: runs rows that are requests of their own.
        joint_rows: that are run together.
        single_rows: the most of them that are run one by one.

    Attributes:
        on_run: see ``probe``.
    """

    on_run: Callable[[Arrays, int], object]

    def __init__(
        self,
        session: Rows,
        signature: Signature,
        run_joined: Callable[[Inputs], Arrays],
        uncounted: Sequence[int],
        lengths: Mapping[int, tuple[int, ...]] | None,
        joint_rows: int,
        single_rows: int,
    ) -> None:
        self._run, self._run_joined = session.run_arrays, run_joined
        self._signature = signature
        self._uncounted = uncounted
        self._lengths = lengths
        self._joint_rows, self._single_rows = joint_rows, min(joint_rows, single_rows)
        #: the shape of a row of each input, and whether whole numbers are to be the least ones
        self._shapes: list[tuple[int, tuple[int, ...]]] = []
        self._is_narrow = False
        self._until_ns = time.monotonic_ns() + _MOST_NS

    def difference(self, draw: int) -> Difference:
        """How much the rows of a draw differ.

        Raises:
            NoDraw: a single row does not run.
            NotJoined: another number of rows comes, or they do not run together.
        """
        inputs, first = self._first() if draw == 0 else (self._draw(draw), None)
        try:
            singles = [] if first is None else [first]
            singles += [self._run(one_row(inputs, row)) for row in range(len(singles), self._single_rows)]
        except RequestError as error:
            raise NoDraw(f"a random row does not run: {str(error)[:_MOST_REASON]}") from None
        for own in singles:
            self._check_rows(own, 1)
        try:
            joint = self._run_joined(inputs)
        except RequestError as error:
            text = f"{self._joint_rows} rows do not run together: {str(error)[:_MOST_REASON]}"
            raise NotJoined(text) from None
        self._check_rows(joint, self._joint_rows)
        self.on_run(joint, self._joint_rows)
        outputs = self._signature.outputs
        floats = others = worst = 0.0
        what = 0
        for index, together in enumerate(joint):
            apart = [own[index] for own in singles]
            found, is_float = differ(together, apart, self._joint_rows, outputs[index].datatype.name)
            if found > worst:
                what, worst = index, found
            if is_float:
                floats = max(floats, found)
            else:
                others = max(others, found)
        return Difference(floats, others, f"output '{outputs[what].name}'")

    def _first(self) -> tuple[Inputs, Arrays]:
        """Find shapes and values with which a row runs; returns the first draw, and what its first row comes to.

        Raises:
            NoDraw: there are none.
        """
        inputs, given = self._signature.inputs, self._lengths
        is_open = given is None and any([-1 in tensor.graph_shape for tensor in inputs])
        has_numbers = any([tensor.datatype.name.startswith(("INT", "UINT")) for tensor in inputs])
        found: tuple[Inputs, Arrays] | None = None
        problem = ""
        for length in _LENGTHS if is_open else _LENGTHS[:1]:
            shapes = [
                (index, given[index] if given is not None else _closed(tensor.graph_shape, length))
                for index, tensor in enumerate(inputs)
                if not tensor.optional
            ]
            row_bytes = sum([prod(shape) * (inputs[index].datatype.size or 16) for index, shape in shapes])
            if row_bytes * self._joint_rows > _MOST_BYTES:
                problem = problem or f"{self._joint_rows} rows take more than {_MOST_BYTES >> 20} MiB"
                break
            self._shapes = shapes
            for narrow in (False, True) if has_numbers else (False,):
                self._is_narrow = narrow
                drawn = self._draw(0)
                try:
                    first: Arrays = self._run(one_row(drawn, 0))
                except RequestError as error:
                    problem = str(error)
                    if time.monotonic_ns() > self._until_ns:
                        raise NoDraw(f"no random row runs: {problem[:_MOST_REASON]}") from None
                    continue
                found = drawn, first
                if any(map(size_of, first)) or other_rows(first, 1, self._uncounted):
                    return found
                break  # nothing can be told by outputs without elements
        if found is None:
            raise NoDraw(f"no random row runs: {problem[:_MOST_REASON]}")
        return found

    def _check_rows(self, outputs: Arrays, rows: int) -> None:
        other = other_rows(outputs, rows, self._uncounted)
        if other:
            index, shape = other[0]
            name = self._signature.outputs[index].name
            raise NotJoined(f"output '{name}' is {list(shape)} for {rows} row{'s' if rows > 1 else ''}")

    def _draw(self, draw: int) -> Inputs:
        return {
            index: random_rows(
                self._signature.inputs[index].datatype, (self._joint_rows, *shape), at + 7 * draw, self._is_narrow
            )
            for at, (index, shape) in enumerate(self._shapes)
        }


def _closed(shape: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple([length if size == -1 else size for size in shape])
