"""What a configuration says of a model's sequences, as config.yaml writes it.

sequences:
  strategy: direct
  max_idle_us: 1000000
  controls:
    START: {kind: start, datatype: INT32, values: [0, 1]}
    CORRID: {kind: corrid, datatype: UINT64}
  states:
    - {input: state_in, output: state_out, initial: zero}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, cast

from toutates.models.config.yaml_section import Section
from toutates.protocol.datatypes import BY_NAME

__all__ = [
    "CONTROL_TYPES",
    "CORRID_TYPES",
    "DEFAULT_IDLE_US",
    "MAX_CANDIDATES",
    "MAX_IDLE_US",
    "MAX_QUEUE_DELAY_US",
    "ControlSettings",
    "SequenceSettings",
    "StateSettings",
    "read_sequences",
]

Kind = Literal["start", "end", "ready", "corrid"]
Strategy = Literal["direct", "oldest"]
Initial = Literal["", "zero", "file"]

#: How long a sequence may rest where nothing is said, as with Triton.
DEFAULT_IDLE_US: Final = 1_000_000
MAX_IDLE_US: Final = 10**12
#: Sequences that one instance may serve at once.
MAX_CANDIDATES: Final = 2**20
#: Datatypes of controls that are true or false, and of ids.
CONTROL_TYPES: Final = ("INT32", "FP32", "BOOL")
CORRID_TYPES: Final = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
MAX_QUEUE_DELAY_US: Final = 60_000_000
_MAX_BATCH_SIZE: Final = 2**20


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """A control input.

    Attributes:
        name: of the input.
        kind: what it tells of a row.
        datatype: of the input.
        values: for false and for true; () for ``corrid``.
    """

    name: str
    kind: Kind
    datatype: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StateSettings:
    """A state.

    Attributes:
        input, output: names of the tensors that take it and give it.
        initial: of a sequence that begins: zeros, a file, or "" for whatever; zeros then, too.
        file: with ``initial`` "file", relative to the model's directory ``initial_state``.
        datatype: such as ``FP32``; "" for the graph's.
        dims: of a row, where the file says them; None for the graph's.
        initial_dims: shape of ``file``; None for ``dims``.
    """

    input: str
    output: str
    initial: Initial = ""
    file: str = ""
    datatype: str = ""
    dims: tuple[int, ...] | None = None
    initial_dims: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """How a model's sequences are scheduled; see ``engine.sequences.rules``.

    Attributes:
        strategy: ``direct`` (a row of the batch for each sequence) or ``oldest``.
        max_idle_us: a sequence without a request for so long is given up.
        max_candidates: sequences that an instance serves at once; 0 for the batch size. Of ``oldest`` alone.
        max_queue_delay_us: how long a request may wait for company.
        minimum_slot_utilization: part of the slots that need no more company. Of ``direct`` alone.
        preferred_batch_sizes: sizes at which a batch does not wait. Of ``oldest`` alone.
        max_state_bytes: memory that the states of all sequences may take; no sequence begins above it.
        iterative: whether the model may ask for a request once more. Of Python models alone.
        controls, states: see there.
        preserve_ordering: whether requests of an instance are answered in the order in which they could run, also where
            unlike shapes stand between them. Of ``oldest`` alone.
    """

    strategy: Strategy = "direct"
    max_idle_us: int = DEFAULT_IDLE_US
    max_candidates: int = 0
    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_state_bytes: int = 2**30
    iterative: bool = False
    controls: tuple[ControlSettings, ...] = ()
    states: tuple[StateSettings, ...] = ()
    preserve_ordering: bool = False


def read_sequences(section: Section | None) -> SequenceSettings | None:
    """The section ``sequences`` of a config.yaml; None where there is none."""
    if section is None:
        return None
    defaults = SequenceSettings()
    strategy = cast(Strategy, section.optional_choice("strategy", ("direct", "oldest")) or "direct")
    settings = SequenceSettings(
        strategy=strategy,
        max_idle_us=section.optional_integer("max_idle_us", MAX_IDLE_US, 1_000_000) or defaults.max_idle_us,
        max_candidates=section.optional_integer("max_candidates", MAX_CANDIDATES, 64, lowest=0) or 0,
        max_queue_delay_us=section.optional_integer("max_queue_delay_us", MAX_QUEUE_DELAY_US, 100, lowest=0) or 0,
        minimum_slot_utilization=section.optional_number("minimum_slot_utilization", 1, 0.5) or 0.0,
        preferred_batch_sizes=section.integers("preferred_batch_sizes", _MAX_BATCH_SIZE, "[4, 8]"),
        max_state_bytes=section.optional_integer("max_state_bytes", 2**50, 2**30) or defaults.max_state_bytes,
        iterative=section.optional_flag("iterative") or False,
        controls=_controls(section.mapping("controls", "controls: {START: {kind: start}}")),
        states=tuple(map(_state, section.sections("states", "states: [{input: in, output: out}]"))),
        preserve_ordering=bool(section.optional_flag("preserve_ordering")),
    )
    for key, other in (
        ("max_candidates", "oldest"),
        ("preferred_batch_sizes", "oldest"),
        ("preserve_ordering", "oldest"),
        ("minimum_slot_utilization", "direct"),
    ):
        if section.has(key) and strategy != other:
            section.refuse(
                key, f"has no effect with the strategy {strategy}", None, f"write `strategy: {other}`, or remove it"
            )
    section.refuse_unknown_keys()
    return settings


def _controls(section: Section | None) -> tuple[ControlSettings, ...]:
    if section is None:
        return ()
    controls: list[ControlSettings] = []
    for name, own in section.subsections("START: {kind: start, datatype: INT32, values: [0, 1]}"):
        kind = cast(Kind, own.choice("kind", ("start", "end", "ready", "corrid")))
        if kind == "corrid":
            control = ControlSettings(name, kind, own.choice("datatype", CORRID_TYPES))
        else:
            values = own.numbers("values", "[0, 1]") if own.has("values") else (0.0, 1.0)
            control = ControlSettings(name, kind, own.choice("datatype", CONTROL_TYPES), values)
            if len(values) != 2:
                own.refuse("values", "are not two numbers", list(values), "write those for false and true: [0, 1]")
        own.refuse_unknown_keys()
        if any(one.kind == kind for one in controls):
            section.refuse(name, f"is a second control of kind {kind}", None, "keep one of them")
        controls.append(control)
    return tuple(controls)


def _state(section: Section) -> StateSettings:
    in_file = section.has("file")
    initial = section.optional_choice("initial", ("zero",)) or ""
    if in_file and initial:
        section.refuse("initial", "stands beside `file`", None, "keep one of them")
    state = StateSettings(
        input=section.required_text("input", "state_in"),
        output=section.required_text("output", "state_out"),
        initial="file" if in_file else cast(Initial, initial),
        file=section.text("file", "initial.bin") if in_file else "",
        datatype=section.optional_choice("datatype", tuple(BY_NAME)) or "",
        dims=section.shape("shape") if section.has("shape") else None,
        initial_dims=section.shape("initial_shape") if section.has("initial_shape") else None,
    )
    path = PurePosixPath(state.file)
    if in_file and (path.is_absolute() or ".." in path.parts):
        section.refuse("file", "leaves the directory initial_state", state.file, "write a plain name")
    section.refuse_unknown_keys()
    return state
