"""``padding`` of a config.yaml: rows of different length share a batch, as ``engine.padded`` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

import numpy as np

from toutates.engine.lengths import Buckets
from toutates.engine.padded.padding import DEFAULT_MOST_ELEMENTS, PaddedInput, Padding
from toutates.models.config.yaml_section import MAX_DIMENSION, Section
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError

__all__ = ["PaddedTensor", "PaddingSettings", "padding_of", "padding_warnings", "read_padding", "with_made_mask"]

#: More buckets than that are none: every one of them is a shape of its own to ONNX Runtime.
_MAX_BUCKETS: Final = 128
_MAX_AXIS: Final = 32
#: Datatypes of a mask: those that have a 1.
_MASKS: Final = (
    "BOOL",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "FP16",
    "FP32",
    "FP64",
)


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """One entry of ``padding.inputs``.

    Attributes:
        axis: the dimension that is padded; that of the batch is 0.
        value: what rows are filled up with.
    """

    axis: int = 1
    value: float = 0


@dataclass(frozen=True, slots=True)
class PaddingSettings:
    """How rows of different length share a batch.

    Attributes:
        inputs: those that are padded, by name.
        mask: the input that the server makes where a request leaves it out; "" for none.
        outputs: by name, the dimension that is cut back to the row's own length; that of the batch is 0.
        buckets: lengths that rows are padded to, ascending; () for four to each doubling.
        max_batch_tokens: padded elements of a batch.
    """

    inputs: Mapping[str, PaddedTensor]
    mask: str = ""
    outputs: Mapping[str, int] = field(default_factory=dict)
    buckets: tuple[int, ...] = ()
    max_batch_tokens: int = DEFAULT_MOST_ELEMENTS


def read_padding(section: Section | None) -> PaddingSettings | None:
    """Read the section ``padding``; what is wrong goes to its list."""
    if section is None:
        return None
    inputs = section.mapping("inputs", "inputs: {input_ids: {axis: 1, value: 0}}")
    if inputs is None and not section.has("inputs"):
        section.refuse("inputs", "required key is missing", None, "name the inputs whose rows differ in length")
    tensors: dict[str, PaddedTensor] = {}
    for name, own in inputs.subsections("input_ids: {axis: 1, value: 0}") if inputs is not None else ():
        tensors[name] = PaddedTensor(own.optional_integer("axis", _MAX_AXIS, 1) or 1, own.number("value", 0))
        own.refuse_unknown_keys()
    if inputs is not None and not tensors:
        section.refuse("inputs", "names no input", None, "name the inputs whose rows differ in length")
    outputs = section.mapping("outputs", "outputs: {last_hidden_state: 1}")
    buckets = section.integers("buckets", MAX_DIMENSION, "[16, 32, 64, 128, 256, 512]")
    if list(buckets) != sorted(set(buckets)) or len(buckets) > _MAX_BUCKETS:
        remedy = f"write at most {_MAX_BUCKETS} lengths, each above the one before"
        section.refuse("buckets", "is not a list of ascending lengths", list(buckets), remedy)
    settings = PaddingSettings(
        inputs=MappingProxyType(tensors),
        mask=section.text("mask", "attention_mask") if section.has("mask") else "",
        outputs=MappingProxyType(outputs.integer_values(_MAX_AXIS, 1) if outputs is not None else {}),
        buckets=buckets,
        max_batch_tokens=section.optional_integer("max_batch_tokens", MAX_DIMENSION, 4_096) or DEFAULT_MOST_ELEMENTS,
    )
    if settings.mask in settings.inputs:
        section.refuse("mask", "is among the inputs too", settings.mask, "keep it in one of them")
    section.refuse_unknown_keys()
    return settings


# --- against the graph -----------------------------------------------------------------------------------------------


def padding_of(settings: PaddingSettings | None, signature: Signature, source: Path) -> Padding | None:
    """The padding of a version, by the indices of its tensors; None where it has none.

    Args:
        settings: of the version.
        signature: its tensors.
        source: the file to name in errors.

    Raises:
        ConfigurationError: the padding does not fit the tensors.
    """
    return None if settings is None else _Resolver(settings, signature, source).padding()


def with_made_mask(signature: Signature, padding: Padding | None) -> Signature:
    """The signature for clients, who may leave out the mask that the server makes."""
    if padding is None or padding.mask is None:
        return signature
    inputs = list(signature.inputs)
    inputs[padding.mask] = replace(inputs[padding.mask], optional=True)
    return replace(signature, inputs=tuple(inputs))


def padding_warnings(padding: Padding | None, signature: Signature, source: Path) -> list[str]:
    """What may be a mistake, one sentence each."""
    if padding is None:
        return []
    return [
        f"'{source}': padding: output '{tensor.name}' has an open dimension and is not among the outputs that are cut "
        f"back; if that is the length, write `outputs: {{{tensor.name}: {1 + tensor.graph_shape.index(-1)}}}`, else "
        "answers have the length of their batch"
        for index, tensor in enumerate(signature.outputs)
        if -1 in tensor.graph_shape and index not in padding.outputs
    ]


class _Resolver:
    """Finds the tensors of a ``PaddingSettings`` in a signature."""

    def __init__(self, settings: PaddingSettings, signature: Signature, source: Path) -> None:
        self._settings, self._signature, self._source = settings, signature, source

    def padding(self) -> Padding:
        settings, signature = self._settings, self._signature
        if not signature.batched:
            self._refuse("", "is for models whose requests are batched", None, "remove it, or make the model batched")
        inputs: dict[int, PaddedInput] = {}
        for name, own in settings.inputs.items():
            index, tensor = self._find("inputs", name, signature.inputs)
            inputs[index] = PaddedInput(self._axis(f"inputs.{name}.axis", own.axis, tensor), own.value)
            self._check_value(f"inputs.{name}.value", own.value, tensor)
        mask = None
        if settings.mask:
            mask, tensor = self._find("mask", settings.mask, signature.inputs)
            if tensor.datatype.name not in _MASKS or tensor.graph_shape.count(-1) != 1:
                problem = "cannot be made: the input has not one open dimension, or another datatype than masks have"
                self._refuse("mask", problem, settings.mask, "remove it, and let clients send the input")
            inputs[mask] = PaddedInput(tensor.graph_shape.index(-1))
        for index, tensor in enumerate(signature.inputs):
            if not tensor.datatype.size:
                problem = f"does not go with input '{tensor.name}' of BYTES"
                self._refuse("", problem, None, "remove it, or export the model without strings")
            if index in inputs and tensor.reshape is not None:
                problem = "is shown to clients in another shape than the graph has"
                self._refuse("inputs", problem, tensor.name, "remove its shape from input_wire_shapes (reshape)")
        outputs: dict[int, int] = {}
        for name, axis in settings.outputs.items():
            index, tensor = self._find("outputs", name, signature.outputs)
            outputs[index] = self._axis(f"outputs.{name}", axis, tensor)
            if tensor.reshape is not None:
                problem = "is shown to clients in another shape than the graph has"
                self._refuse("outputs", problem, name, "remove its shape from output_wire_shapes (reshape)")
        if outputs and not all(tensor.datatype.size for tensor in signature.outputs):
            self._refuse(
                "outputs", "cannot be cut back beside outputs of BYTES", None, "leave those out by the key `outputs`"
            )
        return Padding(
            MappingProxyType(inputs),
            mask,
            MappingProxyType(outputs),
            Buckets(settings.buckets),
            settings.max_batch_tokens,
        )

    def _find(self, key: str, name: str, tensors: tuple[TensorSpec, ...]) -> tuple[int, TensorSpec]:
        for index, tensor in enumerate(tensors):
            if tensor.name == name:
                return index, tensor
        names = ", ".join(tensor.name for tensor in tensors)
        role = "output" if key == "outputs" else "input"
        self._refuse(key, f"the model has no such {role}", name, f"the model's {role}s: {names}")

    def _axis(self, key: str, axis: int, tensor: TensorSpec) -> int:
        shape = tensor.graph_shape
        if axis > len(shape) or shape[axis - 1] != -1:
            open_ = [1 + at for at, size in enumerate(shape) if size == -1]
            remedy = f"write one of {open_}" if open_ else "name a tensor that has an open dimension"
            self._refuse(key, f"is no open dimension of '{tensor.name}', which is {[-1, *shape]}", axis, remedy)
        return axis - 1

    def _check_value(self, key: str, value: float, tensor: TensorSpec) -> None:
        with np.errstate(all="ignore"):
            try:
                fits = float(np.asarray(value).astype(tensor.datatype.numpy)) == value or tensor.datatype.name in (
                    "FP16",
                    "FP32",
                )
            except (OverflowError, ValueError):
                fits = False
        if not fits or (tensor.datatype.name == "BF16" and value):
            self._refuse(key, f"is no value of {tensor.datatype.name}", value, "write such as 0")

    def _refuse(self, key: str, problem: str, value: object, remedy: str) -> NoReturn:
        where = f"padding.{key}" if key else "padding"
        raise ConfigurationError(problem, source=self._source, key=where, value=value, remedy=remedy)
