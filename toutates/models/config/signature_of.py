"""The signature of a version: the tensors that its model's file has, as narrowed by the configuration.

Whether rows of several requests may share a run is decided by Triton's rule: every input and every output has an open
first dimension, and the configuration does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from toutates.models.config.declared import Declared
from toutates.models.config.settings import ModelSettings, Shapes
from toutates.protocol.signature import Signature, TensorSpec, reshape_fits
from toutates.system.errors import ConfigurationError

__all__ = ["signature_of"]


def signature_of(
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    settings: ModelSettings,
    *,
    source: Path,
    declared: Declared | None = None,
) -> Signature:
    """The signature of a version.

    Args:
        inputs, outputs: of the model's file, with whole shapes; an empty one may be a scalar's, or of a rank that the
            file leaves open.
        settings: of the version; its shapes narrow those of the file.
        source: the config.yaml to name in errors.
        declared: the tensors of a config.pbtxt, which replace the shapes of the settings.

    Returns:
        Required inputs, then optional ones, and outputs, in the file's order or that of a config.pbtxt which lists
        them; shapes without the batch dimension when the model is batched.

    Raises:
        ConfigurationError: the configuration names a tensor that the model does not have, or contradicts the model.
    """
    if declared is not None:
        settings = declared.apply(settings, inputs, outputs)
        # Clients see tensors in the order of the file.
        inputs = _in_order(inputs, [tensor.name for tensor in declared.inputs])
        outputs = _in_order(outputs, [tensor.name for tensor in declared.outputs])
    _refuse_unknown("input", inputs, settings.required_inputs, "required_inputs", source)
    _refuse_unknown("output", outputs, settings.outputs, "outputs", source)
    _refuse_unknown("output", outputs, settings.labels, "labels", source)
    inputs = [
        replace(tensor, optional=tensor.optional and tensor.name not in settings.required_inputs) for tensor in inputs
    ]
    if settings.outputs:
        states = [state.output for state in settings.sequences.states] if settings.sequences is not None else []
        offered = {*settings.outputs, *states}
        outputs = [tensor for tensor in outputs if tensor.name in offered]
    ins = _Tensors("input", inputs, settings.input_shapes, settings.input_wire_shapes, source)
    outs = _Tensors("output", outputs, settings.output_shapes, settings.output_wire_shapes, source)
    batched = settings.batching and ins.batchable and outs.batchable
    return Signature(ins.specs(batched), outs.specs(batched), batched)


def _in_order(tensors: list[TensorSpec], names: Sequence[str]) -> list[TensorSpec]:
    """The tensors in the order of ``names``; those that it does not name come last."""
    places = {name: place for place, name in enumerate(names)}
    return sorted(tensors, key=lambda tensor: places.get(tensor.name, len(places)))


def _refuse_unknown(
    role: str,
    tensors: Sequence[TensorSpec],
    wanted: Collection[str],
    key: str,
    source: Path,
    shapes: Shapes | None = None,
) -> None:
    names = [tensor.name for tensor in tensors]
    for name in wanted:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            known = f"the model's {role}s: {', '.join(names)}"
            remedy = f"did you mean {near[0]!r}? {known}" if near else known
            where, value = (f"{key}.{name}", list(shapes[name])) if shapes is not None else (key, name)
            raise ConfigurationError(
                f"the model has no such {role}", source=source, key=where, value=value, remedy=remedy
            )


class _Tensors:
    """The inputs or the outputs of a graph, and what the configuration says of them.

    Args:
        role: ``input`` or ``output``.
        tensors: of the graph, with whole shapes.
        configured: shapes by tensor name, the batch dimension included.
        wire: shapes by tensor name as clients see them, likewise.
        source: the config.yaml to name in errors.
    """

    def __init__(
        self,
        role: str,
        tensors: Sequence[TensorSpec],
        configured: Mapping[str, tuple[int, ...]],
        wire: Mapping[str, tuple[int, ...]],
        source: Path,
    ) -> None:
        self._role, self._configured, self._wire, self._source = role, configured, wire, source
        _refuse_unknown(role, tensors, configured, f"{role}_shapes", source, configured)
        _refuse_unknown(role, tensors, wire, f"{role}_wire_shapes", source, wire)
        # [] stands for an unknown rank too (see above): then the configured shape is all there is to know.
        self._tensors = [replace(tensor, shape=tensor.shape or configured.get(tensor.name, ())) for tensor in tensors]

    @property
    def batchable(self) -> bool:
        """Whether there are tensors, all of them required, each with an open first dimension."""
        return bool(self._tensors) and all(
            tensor.shape[:1] == (-1,) and not tensor.optional for tensor in self._tensors
        )

    def specs(self, batched: bool) -> tuple[TensorSpec, ...]:
        """The tensors with their final shapes, the required ones first."""
        ordered = sorted(self._tensors, key=lambda tensor: tensor.optional)
        return tuple(self._spec(tensor, batched) for tensor in ordered)

    def _spec(self, tensor: TensorSpec, batched: bool) -> TensorSpec:
        shape = self._narrowed(tensor, batched)
        if tensor.name in self._wire:
            return self._reshaped(tensor, shape, self._wire[tensor.name], batched)
        own = shape[1:] if batched else shape
        return replace(tensor, shape=own or (1,), reshape=None if own else ())

    def _reshaped(self, tensor: TensorSpec, shape: tuple[int, ...], wire: tuple[int, ...], batched: bool) -> TensorSpec:
        """The tensor in the shape that clients are to see."""
        if batched and (wire[:1] != (-1,) or not reshape_fits(wire[1:], shape[1:])):
            problem = "cannot become the graph's shape behind the batch dimension, which is written -1"
        elif not batched and not reshape_fits(wire, shape):
            problem = "cannot become the graph's shape"
        else:
            wire, shape = (wire[1:], shape[1:]) if batched else (wire, shape)
            wire = wire or (1,)
            return replace(tensor, shape=wire, reshape=None if wire == shape else shape)
        remedy = f"write a shape of as many elements as {list(shape)}, with the same dimensions open"
        raise self._refused(f"{self._role}_wire_shapes.{tensor.name}", problem, wire, remedy)

    def _narrowed(self, tensor: TensorSpec, batched: bool) -> tuple[int, ...]:
        """The configured shape where there is one that fits the graph's, else the graph's."""
        graph = tensor.shape
        shape = self._configured.get(tensor.name, graph)
        if len(shape) != len(graph):
            problem = f"has {len(shape)} dimensions, the graph has {len(graph)}"
        elif batched and shape[0] != -1:
            problem = "the first dimension is the batch dimension, which stays open"
        elif any(not self._fits(size, given) for size, given in zip(graph, shape, strict=True)):
            problem = "differs from a size that the graph fixes"
        else:
            return shape
        remedy = f"write {list(graph)}, where each -1 {'after the first ' if batched else ''}may become a size"
        if self._role == "output":
            remedy += ", and each size -1 that the graph does not keep"
        raise self._refused(f"{self._role}_shapes.{tensor.name}", problem, shape, remedy)

    def _fits(self, size: int, given: int) -> bool:
        """Whether a configured size stands for one of the graph; of outputs, what the graph fixes may be open."""
        return size in (-1, given) or (given == -1 and self._role == "output")

    def _refused(self, key: str, problem: str, shape: tuple[int, ...], remedy: str) -> ConfigurationError:
        return ConfigurationError(problem, source=self._source, key=key, value=list(shape), remedy=remedy)
