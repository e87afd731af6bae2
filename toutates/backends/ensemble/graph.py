"""The graph of an ensemble as its configuration says it, and what can be said against it without its members.

Texts are Triton's. All that is wrong is told at once, in the order in which Triton checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from toutates.models.config.problems import Problems
from toutates.models.config.triton_tensors import declared_tensors
from toutates.models.table import Need
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["Graph", "Step", "read_graph"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an ensemble.

    Attributes:
        number: from 0, in the order of the configuration.
        model: the member's name.
        version: of the member; None for the newest.
        inputs: ensemble tensor by the member's input.
        outputs: ensemble tensor by the member's output.
    """

    number: int
    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def need(self) -> Need:
        """The member."""
        return Need(self.model, self.version)


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph of an ensemble that is sound by itself.

    Attributes:
        model: the ensemble's name.
        batch_size: the ensemble's ``max_batch_size``; 0 where it is not batched.
        signature: the ensemble's tensors.
        steps: in the order of the configuration.
        tensors: names of all ensemble tensors; the inputs come first, in the signature's order.
        max_inflight: requests that a step has under way at most; 0 for any number.
    """

    model: str
    batch_size: int
    signature: Signature
    steps: tuple[Step, ...]
    tensors: tuple[str, ...]
    max_inflight: int

    @property
    def needs(self) -> Sequence[Need]:
        """The members, each once."""
        return list(dict.fromkeys(step.need for step in self.steps))

    def producer(self, tensor: str) -> Step | None:
        """The step that writes an ensemble tensor; None for an input of the ensemble."""
        return next((step for step in self.steps if tensor in step.outputs.values()), None)

    def read(self, outputs: Sequence[int], needed: int) -> int:
        """The ensemble tensors that somebody reads: the bit of each one's place in ``tensors`` is set.

        Args:
            outputs: that are wanted, indices in the signature.
            needed: see ``needed``.
        """
        names = {self.signature.outputs[index].name for index in outputs}
        for step in self.steps:
            if needed >> step.number & 1:
                names.update(step.inputs.values())
        return sum(1 << at for at, name in enumerate(self.tensors) if name in names)

    def needed(self, outputs: Sequence[int]) -> int:
        """The steps that contribute to some outputs: the bit of each step's number is set.

        Args:
            outputs: indices in the signature.
        """
        found = 0
        wanted = [self.signature.outputs[index].name for index in outputs]
        while wanted:
            step = self.producer(wanted.pop())
            if step is not None and not found >> step.number & 1:
                found |= 1 << step.number
                wanted += step.inputs.values()
        return found


def read_graph(config: ModelConfig, model: str, source: Path, most_problems: int | None = None) -> Graph:
    """Read the graph of an ensemble.

    Args:
        config: of the ensemble.
        model: its name.
        source: the file, for errors.
        most_problems: that are told; None for all.

    Raises:
        ConfigurationError: it cannot be served so; with a line for each problem.
    """
    problems = Problems(source)
    _check_fields(config, model, problems)
    steps = _read_steps(config, model, problems)
    inputs, outputs = declared_tensors(config, model, problems, all_required=False)
    for role, tensors in (("input", inputs), ("output", outputs)):
        if not tensors:
            problems.add(role, f"ensemble '{model}' must specify '{role}'", None, f"list every {role} of the ensemble")
    if steps:
        _check_flow([tensor.name for tensor in inputs], [tensor.name for tensor in outputs], steps, model, problems)
    problems.raise_all(most_problems)

    def spec(name: str, datatype: str, dims: tuple[int, ...], shape: tuple[int, ...], *, optional: bool) -> TensorSpec:
        type_ = next(one for one in BY_NAME.values() if one.config_name == datatype)
        return TensorSpec(name, type_, dims, optional, shape if shape != dims else None)

    signature = Signature(
        tuple([spec(t.name, t.datatype, t.dims, t.shape, optional=t.optional) for t in inputs]),
        tuple([spec(t.name, t.datatype, t.dims, t.shape, optional=False) for t in outputs]),
        batched=config.max_batch_size > 0,
    )
    names = [tensor.name for tensor in inputs]
    names += [name for step in steps for name in (*step.inputs.values(), *step.outputs.values())]
    return Graph(
        model,
        config.max_batch_size,
        signature,
        tuple(steps),
        tuple(dict.fromkeys(names)),
        config.ensemble_scheduling.max_inflight_requests,
    )


def _check_fields(config: ModelConfig, model: str, problems: Problems) -> None:
    if config.backend not in ("", "ensemble") or config.platform not in ("", "ensemble"):
        problems.add(
            "platform",
            f"Ensemble model '{model}' must have platform type 'ensemble' and empty backend type",
            None,
            "write platform: 'ensemble', and no backend",
        )
    for field, text in (
        ("instance_group", f"instance group should not be specified for ensemble '{model}'"),
        ("optimization", f"optimization should not be specified for ensemble '{model}'"),
        ("model_warmup", f"model_warmup can not be specified for ensemble '{model}'"),
    ):
        if any(descriptor.name == field for descriptor, _ in config.ListFields()):
            problems.add(field, text, None, "remove it here; members have their own")
    for choice in ("dynamic_batching", "sequence_batching"):
        if config.HasField(choice):
            problems.add(
                choice,
                f"an ensemble has no scheduler of its own; ensemble '{model}' has ensemble_scheduling",
                None,
                "remove it here; members have their own",
            )


def _read_steps(config: ModelConfig, model: str, problems: Problems) -> list[Step]:
    scheduling = config.ensemble_scheduling
    if not config.HasField("ensemble_scheduling"):
        text = f"ensemble scheduling must be set for ensemble {model} whose platform is ensemble"
        problems.add("ensemble_scheduling", text, None, "write its steps")
        return []
    if not scheduling.step:
        problems.add("ensemble_scheduling.step", f"must specify 'step' for ensemble '{model}'", None, "write its steps")
    steps: list[Step] = []
    written: set[str] = set()
    for number, given in enumerate(scheduling.step):
        key = f"ensemble_scheduling.step[{number}]"
        for part in ("model_name", "input_map", "output_map"):
            if not getattr(given, part):
                text = f"must specify '{part}' in step {number} of ensemble '{model}'"
                problems.add(f"{key}.{part}", text, None, "write it")
        if given.model_version < -1:
            problems.add(f"{key}.model_version", "is no version", given.model_version, "write -1 for the newest")
        for tensor in given.output_map.values():
            if tensor in written:
                text = (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{model}' "
                    f"step {number}"
                )
                problems.add(f"{key}.output_map", text, None, "give each output a tensor of its own")
            written.add(tensor)
        version = None if given.model_version == -1 else given.model_version
        steps.append(Step(number, given.model_name, version, _in_order(given.input_map), _in_order(given.output_map)))
    for step in steps:
        for tensor in step.outputs.values():
            if any(tensor == declared.name for declared in config.input):
                text = f"ensemble tensor '{tensor}' is an input of ensemble '{model}', and step {step.number} writes it"
                problems.add(f"ensemble_scheduling.step[{step.number}].output_map", text, None, "name it otherwise")
    return steps


def _in_order(mapping: Mapping[str, str]) -> Mapping[str, str]:
    """A map of protobuf, which has no order, by name."""
    return MappingProxyType(dict(sorted(mapping.items())))


def _check_flow(
    inputs: Sequence[str], outputs: Sequence[str], steps: Sequence[Step], model: str, problems: Problems
) -> None:
    read = {tensor for step in steps for tensor in step.inputs.values()}
    written = {tensor: step for step in steps for tensor in step.outputs.values()}
    key = "ensemble_scheduling"
    for tensor in inputs:
        if tensor not in read:
            text = f"ensemble input '{tensor}' for ensemble {model}' is not used"
            problems.add(key, text, None, "let a step's input_map read it, or remove it")
    for tensor in outputs:
        if tensor not in written:
            text = f"ensemble output '{tensor}' for ensemble {model}' is not used"
            problems.add(key, text, None, "let a step's output_map write it, or remove it")
    there = set(inputs)
    left = list(steps)
    while ready := [step for step in left if there.issuperset(step.inputs.values())]:
        for step in ready:
            there |= set(step.outputs.values())
            left.remove(step)
    for tensor in outputs:
        if tensor in written and tensor not in there:
            starved = next(one for one in written[tensor].inputs.values() if one not in there)
            text = (
                f"output '{tensor}' for ensemble '{model}' is not written: at least one of its depending tensors, "
                f"'{starved}', is not connected"
            )
            problems.add(key, text, None, "let a step write it whose own inputs can be had")
    for tensor in written:
        if tensor not in read and tensor not in outputs:
            text = f"ensemble tensor '{tensor}' is unused in ensemble '{model}'"
            problems.add(key, text, None, "remove it from the output_map, or list it under output")
    for step in left:
        if not any(tensor in outputs for tensor in step.outputs.values()):
            lacking = sorted(one for one in step.inputs.values() if one not in there)
            text = f"step {step.number} of ensemble '{model}' can never run: nothing writes '{lacking[0]}' before it"
            problems.add(f"{key}.step[{step.number}]", text, None, "let a step write it whose own inputs can be had")
