"""A version with sequences out of one without: its tensors, its rules, and the scheduler before its instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from toutates.engine.sequences.rules import SequenceRules
from toutates.engine.sequences.servable import SequenceBounds, SequenceServable
from toutates.engine.sequences.tensors import Control, ControlKind, RowStates, SequenceTensors, State
from toutates.engine.servable import Servable
from toutates.models.capacity import capacity_bytes
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.sequences import ControlSettings, StateSettings
from toutates.models.config.settings import ModelSettings
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError

__all__ = ["SLOT_INPUT", "instance_settings", "sequence_servable", "sequences_of"]

#: The directory of files of initial states, in the model's.
INITIAL_STATE: Final = "initial_state"
#: The input that tells a model where it has the state of a sequence; it is not the model file's.
SLOT_INPUT: Final = "(sequence slot)"


def sequences_of(
    model: str,
    whole: Signature,
    configuration: VersionConfiguration,
    *,
    by_row: bool = False,
    keeps_state: bool = False,
) -> SequenceTensors | None:
    """The tensors of a version with sequences; None of one without.

    Args:
        model: its name.
        whole: all tensors of the model's file.
        configuration: of the version.
        by_row: whether the model sees each row as a request of its own, and so can keep its states and reschedule.
        keeps_state: whether the model keeps the state of each sequence itself, by its slot (``SLOT_INPUT``).

    Raises:
        ConfigurationError: the model does not have a tensor, or has it otherwise; a file cannot be used.
    """
    settings = configuration.settings.sequences
    if settings is None:
        return None
    source, model_dir = configuration.source, configuration.folder.model_dir
    if configuration.settings.padding is not None:
        raise _refused(source, "stand beside padding: rows of a sequence are not padded", "remove one of the two")
    if by_row and settings.states:
        remedy = "keep them in the model, by the correlation_id() of its requests"
        raise _refused(source, "have states, which the server keeps for models without code of their own", remedy)
    if settings.iterative and not by_row:
        remedy = "remove iterative, or iterative_sequence"
        raise _refused(source, "are iterative, and only a Python model can ask for a request once more", remedy)
    given = configuration.given
    # Clients see the outputs of states that a configuration lists.
    listed = [tensor.name for tensor in given.output] if given is not None else configuration.settings.outputs
    hidden = [own.name for own in settings.controls] + [own.input for own in settings.states]
    hidden_outputs = [own.output for own in settings.states if own.output not in listed]
    inputs, outputs = _by_name(whole.inputs), _by_name(whole.outputs)
    for name in hidden:
        if name not in inputs:
            what = "control" if any(own.name == name for own in settings.controls) else "state"
            problem = f"configuration specified sequence {what} '{name}', but model does not provide that input"
            raise _refused(source, problem, f"the model's inputs: {', '.join(inputs)}")
    for own in settings.states:
        if own.output not in outputs:
            problem = f"configuration specified state output '{own.output}', but model does not provide that output"
            raise _refused(source, problem, f"the model's outputs: {', '.join(outputs)}")
    seen_inputs = [spec for spec in whole.inputs if spec.name not in hidden]
    seen_outputs = [spec for spec in whole.outputs if spec.name not in hidden_outputs]
    all_inputs = [*seen_inputs, *[inputs[name] for name in hidden]]
    all_outputs = [*seen_outputs, *[outputs[name] for name in hidden_outputs]]
    places = {spec.name: at for at, spec in enumerate(all_inputs)}
    output_places = {spec.name: at for at, spec in enumerate(all_outputs)}
    controls = tuple(_control(model, own, inputs[own.name], places[own.name], source) for own in settings.controls)
    if keeps_state:
        # Warm-up and samples leave it out.
        controls = (*controls, Control(len(all_inputs), ControlKind.SLOT, BY_NAME["INT32"]))
        all_inputs.append(TensorSpec(SLOT_INPUT, BY_NAME["INT32"], (1,), optional=True))
    states = tuple(State(places[own.input], output_places[own.output]) for own in settings.states)
    initial = [_initial(own, inputs[own.input], outputs[own.output], model_dir, source) for own in settings.states]
    seen = Signature(tuple(seen_inputs), tuple(seen_outputs), whole.batched)
    return SequenceTensors(
        seen,
        Signature(tuple(all_inputs), tuple(all_outputs), whole.batched),
        controls,
        states,
        RowStates(
            tuple(shape for shape, _ in initial),
            tuple(bytearray(content) for _, content in initial),
            sum(len(content) for _, content in initial),
        ),
    )


def sequence_servable(
    model: str,
    version: int,
    tensors: SequenceTensors,
    settings: ModelSettings,
    instances: Sequence[Servable],
    *,
    by_row: bool = False,
    on_end: Callable[[], None] = lambda: None,
) -> SequenceServable:
    """The servable of a version with sequences.

    Args:
        model: its name.
        version: its number.
        tensors: see ``sequence_tensors``.
        settings: of the version.
        instances: that compute its batches.
        by_row: see ``sequences_of``.
        on_end: called when no worker is left, and no batch should take long any more.
    """
    own = settings.sequences
    assert own is not None
    rows = settings.batch_size if tensors.whole.batched else 1
    by_slot = own.strategy == "direct"
    enough = min(own.preferred_batch_sizes, default=rows)
    if by_slot:
        # Nothing is waited for where no part of the slots is asked for.
        enough = max(1, math.ceil(own.minimum_slot_utilization * rows))
    rules = SequenceRules(
        instances=len(instances),
        slots=rows if by_slot else own.max_candidates or rows,
        batch_rows=rows,
        by_slot=by_slot,
        idle_ns=own.max_idle_us * 1_000,
        delay_ns=own.max_queue_delay_us * 1_000,
        enough_rows=enough,
        iterative=own.iterative,
        in_order=own.preserve_ordering,
    )
    bounds = SequenceBounds(
        max(settings.capacity * rows, 2 * rules.slots * rules.instances),
        capacity_bytes(settings, tensors.signature),
        own.max_state_bytes,
    )
    return SequenceServable(model, version, tensors, rules, instances, bounds, by_row=by_row, on_end=on_end)


def instance_settings(settings: ModelSettings) -> ModelSettings:
    """The settings of one instance: it has one executor, and never more than a batch and those that are tried again."""
    return replace(
        settings,
        num_executors=1,
        capacity=2,
        max_queue_delay_us=0,
        max_queue_size=0,
        preferred_batch_sizes=(),
        capacity_bytes=None,
    )


def _control(model: str, own: ControlSettings, spec: TensorSpec, at: int, source: Path) -> Control:
    if spec.shape != (1,):
        problem = (
            f"unable to load model '{model}', sequence control '{own.name}' in model has dims {list(spec.shape)} but "
            "dims [1] is expected"
        )
        raise _refused(source, problem, "export the model with a control of one element for each row")
    if own.datatype != spec.datatype.name:
        problem = (
            f"unable to load model '{model}', sequence control '{own.name}', the model expects data-type "
            f"{spec.datatype.config_name} but the model configuration specifies data-type TYPE_{own.datatype}"
        )
        raise _refused(source, problem, f"write the datatype {spec.datatype.name}")
    kind = ControlKind(own.kind)
    if kind is ControlKind.CORRID:
        return Control(at, kind, spec.datatype, bytes(spec.datatype.size or 4))
    false, true = (np.array(value).astype(spec.datatype.numpy).tobytes() for value in own.values)
    return Control(at, kind, spec.datatype, false, true)


def _initial(
    own: StateSettings, taking: TensorSpec, giving: TensorSpec, model_dir: Path, source: Path
) -> tuple[tuple[int, ...], bytes]:
    """The shape and the bytes of a state of a sequence that begins."""
    if taking.datatype != giving.datatype:
        problem = f"state '{own.input}' is {taking.datatype.name}, and its output is {giving.datatype.name}"
        raise _refused(source, problem, "name an output of the same datatype")
    shape = own.initial_dims or tuple(1 if size == -1 else size for size in taking.shape)
    count = prod(shape)
    size = count * (taking.datatype.size or 4)
    if own.initial != "file":
        return shape, bytes(size)
    path = model_dir / INITIAL_STATE / own.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refused(
            source, f"the initial state of '{own.input}' cannot be read: {error}", "put the file there"
        ) from error
    if taking.datatype.size:
        if len(content) < size:
            problem = (
                f"initial_state setting expects {size} bytes, but the data provided from {own.file} only has "
                f"{len(content)} bytes."
            )
            raise _refused(source, problem, "write all elements of the state")
        content = content[:size]
    return shape, content


def _by_name(tensors: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in tensors}


def _refused(source: Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=source, key="sequences", remedy=remedy)
