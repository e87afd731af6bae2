"""``sequence_batching`` of a config.pbtxt, in Triton's words where it is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toutates.models.config.declared import DeclaredTensor
from toutates.models.config.problems import Problems
from toutates.models.config.sequences import (
    CORRID_TYPES,
    DEFAULT_IDLE_US,
    MAX_CANDIDATES,
    MAX_IDLE_US,
    MAX_QUEUE_DELAY_US,
    ControlSettings,
    Kind,
    SequenceSettings,
    StateSettings,
)
from toutates.models.config.settings import is_inside
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching

__all__ = ["added_inputs", "added_outputs", "sequence_message", "sequence_settings"]

_KEY: Final = "sequence_batching"
_KINDS: Final[dict[str, Kind]] = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "corrid",
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_PAIRS: Final = (("int32_false_true", "INT32"), ("fp32_false_true", "FP32"), ("bool_false_true", "BOOL"))
_BY_CONFIG_NAME: Final = {datatype.config_name: name for name, datatype in BY_NAME.items()}


def sequence_settings(config: ModelConfig, model: str, problems: Problems) -> SequenceSettings | None:
    """What a ModelConfig says of sequences; None where it does not speak of them.

    Args:
        config: the message.
        model: name of the model's directory.
        problems: get what is wrong.
    """
    if not config.HasField("sequence_batching"):
        return None
    return _Reader(config, model, problems).read()


def added_inputs(settings: SequenceSettings) -> list[DeclaredTensor]:
    """The inputs that the server gives, as if the file declared them."""
    controls = [_declared(own.name, own.datatype, (1,)) for own in settings.controls]
    return controls + [_declared(own.input, own.datatype, own.dims or (1,)) for own in settings.states]


def added_outputs(settings: SequenceSettings, listed: Sequence[DeclaredTensor]) -> list[DeclaredTensor]:
    """The outputs of states that the file does not list."""
    names = {tensor.name for tensor in listed}
    return [_declared(own.output, own.datatype, own.dims or (1,)) for own in settings.states if own.output not in names]


def sequence_message(settings: SequenceSettings) -> ModelSequenceBatching:
    """The settings as Triton's message; datatypes and shapes that only the model's file has are left out."""
    batching = ModelSequenceBatching(
        max_sequence_idle_microseconds=settings.max_idle_us, iterative_sequence=settings.iterative
    )
    if settings.strategy == "oldest":
        batching.oldest.max_candidate_sequences = settings.max_candidates
        batching.oldest.preferred_batch_size.extend(settings.preferred_batch_sizes)
        batching.oldest.max_queue_delay_microseconds = settings.max_queue_delay_us
        batching.oldest.preserve_ordering = settings.preserve_ordering
    else:
        batching.direct.minimum_slot_utilization = settings.minimum_slot_utilization
        batching.direct.max_queue_delay_microseconds = settings.max_queue_delay_us
    for own in settings.controls:
        datatype = BY_NAME[own.datatype].config_name if own.kind == "corrid" else "TYPE_INVALID"
        control = ModelSequenceBatching.Control(kind=_NAMES[own.kind], data_type=datatype)
        batching.control_input.add(name=own.name).control.append(control)
        if own.kind == "corrid":
            continue
        control = batching.control_input[-1].control[0]
        pair = next(pair for pair, datatype in _PAIRS if datatype == own.datatype)
        make = {"INT32": int, "FP32": float, "BOOL": bool}[own.datatype]
        getattr(control, pair).extend(map(make, own.values))
    for state in settings.states:
        message = ModelSequenceBatching.State(
            input_name=state.input,
            output_name=state.output,
            data_type=BY_NAME[state.datatype].config_name if state.datatype else "TYPE_INVALID",
            dims=state.dims or (),
        )
        if state.initial:
            initial = message.initial_state.add(name=state.input, data_type=message.data_type)
            initial.dims.extend(state.initial_dims or state.dims or ())
            if state.initial == "file":
                initial.data_file = state.file
            else:
                initial.zero_data = True
        batching.state.append(message)
    return batching


def _declared(name: str, datatype: str, dims: tuple[int, ...]) -> DeclaredTensor:
    # The dims of a state are those of its input and of its output, of which the graph may leave more open.
    return DeclaredTensor(name, BY_NAME[datatype].config_name, dims, dims, narrows=True)


class _Reader:
    """Reads one ``sequence_batching``; what is wrong is collected."""

    def __init__(self, config: ModelConfig, model: str, problems: Problems) -> None:
        self._config, self._model, self._problems = config, model, problems

    def read(self) -> SequenceSettings:
        batching = self._config.sequence_batching
        most = max(1, self._config.max_batch_size)
        is_oldest = batching.WhichOneof("strategy_choice") == "oldest"
        strategy = batching.oldest if is_oldest else batching.direct
        utilization = batching.direct.minimum_slot_utilization
        if not 0.0 <= utilization <= 1.0:
            self._refuse(
                "direct.minimum_slot_utilization",
                f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {self._model}",
                "write such as 0.5",
            )
        for size in batching.oldest.preferred_batch_size:
            if not 1 <= size <= most:
                bound = "be positive" if size < 1 else "be <= max batch size"
                self._refuse(
                    "oldest.preferred_batch_size",
                    f"sequence batching preferred batch size must {bound} for {self._model}",
                    f"write sizes from 1 to {most}",
                )
        if not 0 <= batching.oldest.max_candidate_sequences <= MAX_CANDIDATES:
            self._refuse("oldest.max_candidate_sequences", f"is not from 0 to {MAX_CANDIDATES}", "write such as 64")
        if strategy.max_queue_delay_microseconds > MAX_QUEUE_DELAY_US:
            self._refuse("max_queue_delay_microseconds", f"is above {MAX_QUEUE_DELAY_US}", "write such as 500")
        if batching.max_sequence_idle_microseconds > MAX_IDLE_US:
            self._refuse("max_sequence_idle_microseconds", f"is above {MAX_IDLE_US}", "write such as 5000000")
        return SequenceSettings(
            strategy="oldest" if is_oldest else "direct",
            max_idle_us=batching.max_sequence_idle_microseconds or DEFAULT_IDLE_US,
            max_candidates=max(0, batching.oldest.max_candidate_sequences),
            max_queue_delay_us=strategy.max_queue_delay_microseconds,
            minimum_slot_utilization=utilization,
            preferred_batch_sizes=tuple(sorted(set(batching.oldest.preferred_batch_size))),
            iterative=batching.iterative_sequence,
            controls=self._controls(batching),
            states=self._states(batching),
            preserve_ordering=batching.oldest.preserve_ordering,
        )

    def _refuse(self, key: str, problem: str, remedy: str) -> None:
        self._problems.add(f"{_KEY}.{key}" if key else _KEY, problem, None, remedy)

    # --- controls ----------------------------------------------------------------------------------------------------

    def _controls(self, batching: ModelSequenceBatching) -> tuple[ControlSettings, ...]:
        found: list[ControlSettings] = []
        for given in batching.control_input:
            if not given.name:
                self._refuse(
                    "control_input",
                    f"sequence batching control tensor must have a name for {self._model}",
                    "name the input",
                )
            if len(given.control) > 1:
                self._refuse(
                    "control_input",
                    f"sequence batching control tensor '{given.name}' is specified for multiple control kinds for "
                    f"{self._model}",
                    "keep one of them",
                )
            for control in given.control[:1]:
                name = ModelSequenceBatching.Control.Kind.Name(control.kind)
                kind = _KINDS[name]
                if any(one.kind == kind for one in found):
                    self._refuse(
                        "control_input",
                        f"sequence batching specifies multiple {name} tensors for {self._model}",
                        "keep one of them",
                    )
                own = (
                    self._corrid(given.name, control)
                    if kind == "corrid"
                    else self._flag(given.name, kind, name, control)
                )
                if own is not None:
                    found.append(own)
        return tuple(found)

    def _flag(
        self, tensor: str, kind: Kind, name: str, control: ModelSequenceBatching.Control
    ) -> ControlSettings | None:
        given = [(pair, datatype, tuple(getattr(control, pair))) for pair, datatype in _PAIRS if getattr(control, pair)]
        choices = "'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
        if not given:
            either = "either 'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
            problem = f"sequence batching must specify {either} for {name} for {self._model}"
            self._refuse("control_input", problem, "write such as int32_false_true: [ 0, 1 ]")
            return None
        if len(given) > 1:
            problem = f"sequence batching specifies more than one from {choices} for {name} for {self._model}"
            self._refuse("control_input", problem, "keep one of them")
        pair, datatype, values = given[0]
        if len(values) != 2:
            problem = f"sequence batching control '{pair}' must have exactly 2 entries for {name} for {self._model}"
            self._refuse("control_input", problem, f"write {pair}: [ 0, 1 ]")
        return ControlSettings(tensor, kind, datatype, tuple(map(float, values)))

    def _corrid(self, tensor: str, control: ModelSequenceBatching.Control) -> ControlSettings | None:
        if any(getattr(control, pair) for pair, _ in _PAIRS):
            self._refuse(
                "control_input",
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
                f"for CONTROL_SEQUENCE_CORRID for {self._model}",
                "remove it, and write data_type",
            )
        datatype = _BY_CONFIG_NAME.get(DataType.Name(control.data_type), "")
        if datatype not in CORRID_TYPES:
            self._refuse(
                "control_input",
                f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {self._model}. Allowed data types are "
                "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
                "write data_type: TYPE_UINT64",
            )
            return None
        return ControlSettings(tensor, "corrid", datatype)

    # --- states ------------------------------------------------------------------------------------------------------

    def _states(self, batching: ModelSequenceBatching) -> tuple[StateSettings, ...]:
        found: list[StateSettings] = []
        for given in batching.state:
            if any(given.input_name == one.input or given.output_name == one.output for one in found):
                continue  # as Triton, which says so in its log
            datatype = _BY_CONFIG_NAME.get(DataType.Name(given.data_type), "")
            if not given.input_name or not given.output_name or not datatype:
                self._refuse(
                    "state",
                    f"a state of {self._model} must have input_name, output_name and data_type",
                    "write all three",
                )
                continue
            if given.use_growable_memory:
                problem = "'use_growable_memory' can only work with KIND_GPU model instances right now"
                if not given.use_same_buffer_for_input_output:
                    problem = (
                        "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input "
                        f"name '{given.input_name}'."
                    )
                self._refuse("state", problem, "remove use_growable_memory: states may grow without it")
            found.append(self._state(given, datatype))
        return tuple(found)

    def _state(self, given: ModelSequenceBatching.State, datatype: str) -> StateSettings:
        dims, initial = tuple(given.dims), given.initial_state
        own = StateSettings(given.input_name, given.output_name, datatype=datatype, dims=dims)
        name = given.input_name
        if len(initial) > 1:
            self._refuse(
                "state",
                f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
                f"'{len(initial)}' elements.",
                "keep one of them",
            )
        if not initial:
            return own
        first = initial[0]
        first_dims = tuple(first.dims)
        if first.data_type != given.data_type:
            self._refuse(
                "state",
                f"The data type used for 'initial_state' field of state '{name}' does not match the state data type.",
                "write the state's data_type",
            )
        if not first.name:
            self._refuse(
                "state", f"Field 'name' must be set when using initial_state for state input '{name}'.", "name it"
            )
        if len(first_dims) != len(dims):
            self._refuse(
                "state",
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
                f"'{name}'. {len(first_dims)} != {len(dims)}",
                "write the state's dims",
            )
        elif -1 in first_dims:
            self._refuse(
                "state",
                f"'initial_state' field for state input name '{name}' contains variable dimensions.",
                "write a size for each dimension",
            )
        elif any(size not in (-1, own_size) for size, own_size in zip(dims, first_dims, strict=True)):
            at = next(at for at, size in enumerate(dims) if size not in (-1, first_dims[at]))
            self._refuse(
                "state",
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{first_dims[at]} != {dims[at]}",
                "write the state's dims",
            )
        match first.WhichOneof("state_data"):
            case "zero_data":
                return StateSettings(own.input, own.output, "zero", "", datatype, dims, first_dims)
            case "data_file":
                if not is_inside(first.data_file):
                    self._refuse("state", "data_file leaves the directory initial_state", "write a plain name")
                return StateSettings(own.input, own.output, "file", first.data_file, datatype, dims, first_dims)
        self._refuse(
            "state",
            f"initial_state setting expects state'{name}' to have state_data set",
            "write zero_data: true, or data_file",
        )
        return own
