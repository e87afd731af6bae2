"""What a loaded ONNX graph takes and gives, as ONNX Runtime reports it and config.yaml narrows it.

Whether rows of several requests may share a run is decided by Triton's rule: every input and every output has an open
first dimension. Four cases need saying:

- **Optional inputs.** An input of type ``optional(tensor(X))`` may be left out of ONNX Runtime's ``run``, and an
  initializer that the graph also lists as an input may be replaced by a request. The latter is offered only where
  config.yaml's ``input_shapes`` names it: exporters that keep initializers as inputs would otherwise make every weight
  an input. A request that gives an optional input and one that leaves it out cannot share a run, so a model with
  optional inputs is served unbatched; Triton, too, has optional inputs only without batching.
- **Rows without dimensions.** A batched tensor of shape [batch] is shown as [batch, 1], as Triton shows it.
- **Unknown rank.** ONNX Runtime's Python interface reports ``[]`` for a scalar and for a tensor whose rank the graph
  leaves open. It is taken for a scalar unless config.yaml gives a shape.
- **Fixed first dimensions in config.yaml.** The batch dimension is always written -1 there: rows are gathered from many
  requests, so it cannot be fixed for a model that is batched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Protocol

from toutates.errors import ConfigurationError, ModelLoadError
from toutates.models.settings import ModelSettings
from toutates.protocol.datatypes import BY_ORT_TYPE, Datatype
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["Session", "read_signature"]

_OPTIONAL: Final = "optional("


class NodeArg(Protocol):
    """One tensor, as ``onnxruntime.NodeArg`` describes it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def shape(self) -> Sequence[int | str | None]: ...


class Session(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that is read here, so that this module needs no ONNX Runtime."""

    def get_inputs(self) -> Sequence[NodeArg]: ...

    def get_overridable_initializers(self) -> Sequence[NodeArg]: ...

    def get_outputs(self) -> Sequence[NodeArg]: ...


def read_signature(session: Session, settings: ModelSettings, *, source: Path) -> Signature:
    """Read the signature of a loaded model.

    Args:
        session: the ``onnxruntime.InferenceSession`` of the model.
        settings: of the same version; its ``input_shapes`` and ``output_shapes`` narrow the graph's.
        source: the config.yaml to name in errors.

    Returns:
        Required inputs, then optional ones, and outputs, in the graph's order; shapes without the batch dimension when
        the model is batched.

    Raises:
        ConfigurationError: a shape of config.yaml names no tensor or contradicts the graph.
        ModelLoadError: a tensor has an element type that the protocol cannot carry.
    """
    inputs = _Tensors("input", settings.input_shapes, source)
    for arg in session.get_inputs():
        inputs.add(arg, optional=arg.type.startswith(_OPTIONAL))
    for arg in session.get_overridable_initializers():
        if arg.name in settings.input_shapes:
            inputs.add(arg, optional=True)
    outputs = _Tensors("output", settings.output_shapes, source)
    for arg in session.get_outputs():
        outputs.add(arg)
    batched = inputs.batchable and outputs.batchable
    return Signature(inputs.specs(batched), outputs.specs(batched), batched)


class _Tensors:
    """The inputs or the outputs of a graph, and what config.yaml says of them.

    Args:
        role: ``input`` or ``output``.
        configured: shapes by tensor name, the batch dimension included.
        source: the config.yaml to name in errors.
    """

    def __init__(self, role: str, configured: Mapping[str, tuple[int, ...]], source: Path) -> None:
        self._role, self._configured, self._source = role, configured, source
        self._tensors: list[TensorSpec] = []  # with whole shapes

    def add(self, arg: NodeArg, *, optional: bool = False) -> None:
        """Take one tensor of the graph."""
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in arg.shape)
        # [] stands for an unknown rank too (see above): then the configured shape is all there is to know.
        shape = shape or self._configured.get(arg.name, ())
        self._tensors.append(TensorSpec(arg.name, self._datatype(arg, optional), shape, optional))

    @property
    def batchable(self) -> bool:
        """Whether there are tensors, all of them required, each with an open first dimension."""
        return bool(self._tensors) and all(
            tensor.shape[:1] == (-1,) and not tensor.optional for tensor in self._tensors
        )

    def specs(self, batched: bool) -> tuple[TensorSpec, ...]:
        """The tensors with their final shapes, the required ones first."""
        self._refuse_unknown_names()
        ordered = sorted(self._tensors, key=lambda tensor: tensor.optional)
        return tuple(self._spec(tensor, batched) for tensor in ordered)

    def _spec(self, tensor: TensorSpec, batched: bool) -> TensorSpec:
        shape = self._narrowed(tensor, batched)
        if batched:
            return replace(tensor, shape=shape[1:] or (1,), squeezed=len(shape) == 1)
        return replace(tensor, shape=shape)

    def _datatype(self, arg: NodeArg, optional: bool) -> Datatype:
        element = arg.type[len(_OPTIONAL) : -1] if optional and arg.type.startswith(_OPTIONAL) else arg.type
        if element in BY_ORT_TYPE:
            return BY_ORT_TYPE[element]
        hint = "; export the classifier with zipmap=False" if "map(" in element else ""
        raise ModelLoadError(
            f"{self._role} {arg.name!r} has the type {arg.type}, which the inference protocol cannot carry{hint}"
        )

    def _refuse_unknown_names(self) -> None:
        names = [tensor.name for tensor in self._tensors]
        for name, shape in self._configured.items():
            if name not in names:
                near = get_close_matches(name, names, n=1)
                known = f"the model's {self._role}s: {', '.join(names)}"
                remedy = f"did you mean {near[0]!r}? {known}" if near else known
                raise self._refused(name, f"the model has no such {self._role}", shape, remedy)

    def _narrowed(self, tensor: TensorSpec, batched: bool) -> tuple[int, ...]:
        """The configured shape where there is one that fits the graph's, else the graph's."""
        graph = tensor.shape
        shape = self._configured.get(tensor.name, graph)
        if len(shape) != len(graph):
            problem = f"has {len(shape)} dimensions, the graph has {len(graph)}"
        elif batched and shape[0] != -1:
            problem = "the first dimension is the batch dimension, which stays open"
        elif any(size not in (-1, given) for size, given in zip(graph, shape, strict=True)):
            problem = "differs from a size that the graph fixes"
        else:
            return shape
        remedy = f"write {list(graph)}, where each -1 {'after the first ' if batched else ''}may become a size"
        raise self._refused(tensor.name, problem, shape, remedy)

    def _refused(self, name: str, problem: str, shape: tuple[int, ...], remedy: str) -> ConfigurationError:
        key = f"{self._role}_shapes.{name}"
        return ConfigurationError(problem, source=self._source, key=key, value=list(shape), remedy=remedy)
