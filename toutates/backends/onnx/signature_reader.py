"""Reads the signature of a loaded ONNX graph: its inputs and outputs, as narrowed by the configuration.

Whether rows of several requests may share a run is decided by Triton's rule: every input and every output has an open
first dimension, and the configuration does not say otherwise. Five special cases:

- **Optional inputs.** An input of type ``optional(tensor(X))`` may be left out of ONNX Runtime's ``run``, and an
  initializer that the graph also lists as an input may be replaced by a request. The latter is offered only where
  config.yaml's ``input_shapes`` names it: exporters that keep initializers as inputs would otherwise make every weight
  an input. A request that gives an optional input and one that leaves it out cannot share a run, so a model with
  optional inputs is served unbatched; Triton, too, has optional inputs only without batching.
- **Initializers that config.pbtxt lists as inputs** are offered too, and optional where it says so.
- **Scalars.** A tensor without dimensions is shown as [1], and a batched one of shape [batch] as [batch, 1], as Triton
  shows them.
- **Unknown rank.** ONNX Runtime's Python interface reports ``[]`` for a scalar and for a tensor whose rank the graph
  leaves open. It is taken for a scalar unless config.yaml gives a shape.
- **Fixed first dimensions in config.yaml.** The batch dimension is always written -1 there: rows are gathered from many
  requests, so it cannot be fixed for a model that is batched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from toutates.models.config.declared import Declared
from toutates.models.config.ragged import RaggedKeys, seen_by_clients
from toutates.models.config.settings import ModelSettings
from toutates.models.config.signature_of import signature_of
from toutates.models.config.triton_ragged import PBTXT_RAGGED_KEYS
from toutates.protocol.datatypes import BY_ORT_TYPE, Datatype
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ModelLoadError

__all__ = ["NodeArg", "Session", "read_signature"]

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


def read_signature(
    session: Session, settings: ModelSettings, *, source: Path, declared: Declared | None = None
) -> Signature:
    """Read the signature of a loaded model.

    Args:
        session: the ``onnxruntime.InferenceSession`` of the model.
        settings: of the same version; its shapes narrow the graph's.
        source: the config.yaml to name in errors.
        declared: the tensors of a config.pbtxt, which replace the shapes of the settings.

    Returns:
        Required inputs, then optional ones, and outputs, in the graph's order or that of a config.pbtxt which lists
        them; shapes without the batch dimension when the model is batched. Where rows are ragged, the tensors that
        clients see.

    Raises:
        ConfigurationError: the configuration names a tensor that the graph does not have, or contradicts the graph.
        ModelLoadError: a tensor has an element type that the protocol cannot carry.
    """
    initializers = {tensor.name for tensor in declared.inputs} if declared is not None else settings.input_shapes
    inputs = _read_inputs(session, initializers)
    # Of an output that a graph lists twice, ONNX Runtime has one value.
    outputs = [_read_tensor(arg, "output") for arg in {arg.name: arg for arg in session.get_outputs()}.values()]
    if not outputs:
        raise ModelLoadError("the graph has no outputs, so that nothing can be asked of it; export it with some")
    if settings.ragged is not None:
        keys = RaggedKeys() if declared is None else PBTXT_RAGGED_KEYS
        inputs, outputs = seen_by_clients(inputs, outputs, settings.ragged, source, keys)
    return signature_of(inputs, outputs, settings, source=source, declared=declared)


def _read_inputs(session: Session, initializers: Collection[str]) -> list[TensorSpec]:
    """The graph's inputs, and its initializers in ``initializers``."""
    inputs = [
        replace(_read_tensor(arg, "input"), optional=arg.type.startswith(_OPTIONAL)) for arg in session.get_inputs()
    ]
    inputs += [
        replace(_read_tensor(arg, "input"), optional=True)
        for arg in session.get_overridable_initializers()
        if arg.name in initializers
    ]
    return inputs


def _read_tensor(arg: NodeArg, role: str) -> TensorSpec:
    """A tensor of the graph, with its whole shape."""
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in arg.shape)
    return TensorSpec(arg.name, _datatype(arg, role), shape)


def _datatype(arg: NodeArg, role: str) -> Datatype:
    is_optional_input = role == "input" and arg.type.startswith(_OPTIONAL)
    element = arg.type[len(_OPTIONAL) : -1] if is_optional_input else arg.type
    if element in BY_ORT_TYPE:
        return BY_ORT_TYPE[element]
    hint = "; export the classifier with zipmap=False" if "map(" in element else ""
    raise ModelLoadError(
        f"{role} {arg.name!r} has the type {arg.type}, which the inference protocol cannot carry{hint}"
    )
