"""Checks a ModelInferRequest against its model. Each kind of requests is checked once.

The order of the checks and their texts are Triton's: clients compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from toutates.infer.parameters import check_parameters, parameter_values, shared_memory_place
from toutates.infer.regions import Place, Regions
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.input_checks import check_batch, check_input, check_names
from toutates.protocol.names import request_prefix
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest

__all__ = ["UNCLASSIFIABLE", "ValidatedRequest", "size_mismatch", "validate"]

_NO_REGIONS: Final = Regions()


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """What validation found in a request that fits its model; the same for all requests of its kind.

    Attributes:
        rows: rows of the batch dimension; 1 where the model has none.
        inputs: for each input given, in the signature's order: its index in the signature.
        shapes: for each input given: the shape of one row in the graph.
        sources: for each input given: the index of its raw content; None for typed contents; or where in shared memory
            it is.
        sizes: for each input given: how many bytes it must have; None for BYTES.
        raw_count: how many raw contents there are.
        outputs: index in the signature of each output to return, sorted by name as Triton returns them.
        classes: the number of classes asked for, by index of the output.
        parameters: of the request, for models that read them; without those of its sequence.
        asked_version: as the request names it; "" for none.
        places: of each output that is to be written to shared memory, by its index in the signature.
    """

    rows: int
    inputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    sources: tuple[int | Place | None, ...]
    sizes: tuple[int | None, ...]
    raw_count: int
    outputs: tuple[int, ...]
    classes: Mapping[int, int]
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    asked_version: str = ""
    places: Mapping[int, Place] = field(default_factory=dict)


def validate(
    request: ModelInferRequest,
    raw_sizes: Sequence[int],
    signature: Signature,
    model: str,
    check_place: Callable[[Place], None] = _NO_REGIONS.check,
) -> ValidatedRequest:
    """Check a request against its model.

    Args:
        request: with or without its raw contents, which are not looked at.
        raw_sizes: bytes of each raw content.
        signature: the model's tensors.
        model: its name.
        check_place: raises RequestError for what is in no region of shared memory (``Regions.check``).

    Raises:
        RequestError: the caller's fault, in Triton's words.
    """
    check_parameters(request.parameters)
    sources = _find_data(request, len(raw_sizes), model, check_place)
    classes, places = _read_output_parameters(request, check_place)
    return _Validator(request, raw_sizes, signature, model, sources, classes, places).validated()


# --- where each input's data is --------------------------------------------------------------------------------------


def _find_data(
    request: ModelInferRequest, raw_count: int, model: str, check_place: Callable[[Place], None]
) -> list[int | Place | None]:
    """For each input as sent: the index of its raw content, None for typed contents, or its place in shared memory."""
    sources: list[int | Place | None] = []
    names: set[str] = set()
    next_raw = 0
    for tensor in request.inputs:
        _declare("input", tensor.name, names, request.id)
        place = shared_memory_place(tensor.name, tensor.parameters)
        if place is not None:
            if tensor.HasField("contents"):
                raise InvalidRequest(
                    f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' "
                    f"for model '{model}'"
                )
            check_place(place)
            sources.append(place)
        elif tensor.HasField("contents"):
            if raw_count:
                raise InvalidRequest(
                    f"contents field must not be specified when using raw_input_contents for '{tensor.name}' "
                    f"for model '{model}'"
                )
            sources.append(None)
        elif next_raw < raw_count:
            sources.append(next_raw)
            next_raw += 1
        else:
            raise InvalidRequest(
                f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request."
                + (_NO_ELEMENTS if 0 in tensor.shape else "")
            )
    return sources


#: Of an input whose shape has a dimension of 0.
_NO_ELEMENTS: Final = " It has no elements; send empty contents, or an empty entry in raw_input_contents"


def _declare(kind: str, name: str, names: set[str], identifier: str) -> None:
    """Add a tensor's name to ``names``; refuse one that is there already."""
    if name in names:
        raise InvalidRequest(f"{request_prefix(identifier)}{kind} '{name}' already exists in request")
    names.add(name)


def _read_output_parameters(
    request: ModelInferRequest, check_place: Callable[[Place], None]
) -> tuple[dict[str, int], dict[str, Place]]:
    """By name of the output: the number of classes asked for, and the place in shared memory that it goes to."""
    classes: dict[str, int] = {}
    places: dict[str, Place] = {}
    names: set[str] = set()
    for output in request.outputs:
        _declare("output", output.name, names, request.id)
        place = shared_memory_place(output.name, output.parameters)
        parameter = output.parameters.get("classification")
        if parameter is not None:
            if parameter.WhichOneof("parameter_choice") != "int64_param":
                raise InvalidRequest("invalid value type for 'classification' parameter, expected int64_param")
            if parameter.int64_param <= 0:
                raise InvalidRequest("invalid value for 'classification' parameter, expected >= 0")
            classes[output.name] = parameter.int64_param
        if place is not None:
            if parameter is not None:
                raise InvalidRequest("output can't set both 'shared_memory_region' and 'classification'")
            check_place(place)
            places[output.name] = place
    return classes, places


# --- against the model -----------------------------------------------------------------------------------------------

#: Datatypes whose values have no order that Triton would print.
UNCLASSIFIABLE: Final = frozenset(("BOOL", "FP16", "BF16", "BYTES"))


class _Validator:
    """Makes the checks of Triton's core, in its order. Of several wrong inputs it names the last, as Triton does."""

    def __init__(
        self,
        request: ModelInferRequest,
        raw_sizes: Sequence[int],
        signature: Signature,
        model: str,
        sources: list[int | Place | None],
        classes: Mapping[str, int],
        places: Mapping[str, Place],
    ) -> None:
        self._request = request
        self._raw_sizes = raw_sizes
        self._signature = signature
        self._model = model
        self._sources = sources
        self._classes = classes
        self._places = places
        self._inputs = {tensor.name: tensor for tensor in signature.inputs}
        self._outputs = {tensor.name: index for index, tensor in enumerate(signature.outputs)}

    def validated(self) -> ValidatedRequest:
        outputs = self._requested_outputs()
        given_inputs = self._request.inputs
        where = (self._signature, self._model, request_prefix(self._request.id))
        check_names([tensor.name for tensor in given_inputs], *where)
        rows = check_batch([(tensor.name, tensor.shape) for tensor in given_inputs], *where)
        positions = {tensor.name: at for at, tensor in enumerate(given_inputs)}
        for tensor in reversed(given_inputs):
            check_input(self._inputs[tensor.name], tensor.datatype, tensor.shape, *where)
        given = [
            (index, positions[spec.name]) for index, spec in enumerate(self._signature.inputs) if spec.name in positions
        ]
        shapes = [self._row_shape(self._request.inputs[at], self._signature.inputs[index]) for index, at in given]
        sizes = [self._expected_bytes(self._request.inputs[at], rows) for _, at in given]
        for index, at in reversed(given):
            self._check_size(self._request.inputs[at], self._signature.inputs[index], self._sources[at], rows)
        return ValidatedRequest(
            rows=rows,
            inputs=tuple(index for index, _ in given),
            shapes=tuple(shapes),
            sources=tuple(self._sources[at] for _, at in given),
            sizes=tuple(sizes),
            raw_count=len(self._raw_sizes),
            outputs=outputs,
            classes=self._checked_classes(),
            parameters=parameter_values(self._request.parameters),
            asked_version=self._request.model_version,
            places={self._outputs[name]: place for name, place in self._places.items()},
        )

    def _requested_outputs(self) -> tuple[int, ...]:
        names = [output.name for output in self._request.outputs] or list(self._outputs)
        for name in names:
            if name not in self._outputs:
                raise InvalidRequest(f"unexpected inference output '{name}' for model '{self._model}'")
        return tuple(self._outputs[name] for name in sorted(names))

    def _row_shape(self, tensor: ModelInferRequest.InferInputTensor, spec: TensorSpec) -> tuple[int, ...]:
        return spec.to_graph(tensor.shape[1:] if self._signature.batched else tensor.shape)

    def _expected_bytes(self, tensor: ModelInferRequest.InferInputTensor, rows: int) -> int | None:
        size = self._inputs[tensor.name].datatype.size
        if not size:
            return None
        # Triton leaves a batch dimension of 0 out of the product, which refuses such requests unless a row is empty.
        shape = tensor.shape[1:] if self._signature.batched and rows == 0 else tensor.shape
        return prod(shape) * size

    def _check_size(
        self, tensor: ModelInferRequest.InferInputTensor, spec: TensorSpec, source: int | Place | None, rows: int
    ) -> None:
        """Check the size of a raw content or a place. Typed contents and BYTES are checked where they are decoded."""
        expected = self._expected_bytes(tensor, rows)
        if source is None or expected is None:
            return
        got = source.byte_size if isinstance(source, Place) else self._raw_sizes[source]
        if got != expected or (rows == 0 and got):
            raise size_mismatch(self._request.id, spec.name, self._model, expected, got, rows)

    def _checked_classes(self) -> dict[int, int]:
        classes = {self._outputs[name]: count for name, count in self._classes.items()}
        for index in classes:
            datatype = self._signature.outputs[index].datatype.name
            if datatype in UNCLASSIFIABLE:
                raise InvalidRequest(f"class result not available for output due to unsupported type '{datatype}'")
        return classes


def size_mismatch(identifier: str, tensor: str, model: str, expected: int, got: int, rows: int) -> InvalidRequest:
    """The error for an input whose bytes do not fit its shape.

    Args:
        identifier: the request's id.
        tensor: name of the input.
        model: name of the model.
        expected: bytes of the shape; of one row where the batch dimension is 0, as Triton counts.
        got: bytes there are; as many as expected only where the batch dimension is 0.
        rows: of the request; 0 only where the batch dimension is.
    """
    where = f"for input '{tensor}' for model '{model}'"
    text = f"input byte size mismatch {where}. Expected {expected}, got {got}"
    if got == expected:
        text = (
            f"input byte size mismatch {where}. Its batch dimension is 0, so expected 0, got {got}; send 1 row or more"
        )
    elif rows == 0:
        text += "; its batch dimension is 0, and a request has 1 row or more"
    elif expected == 0:
        text += "; its shape has a dimension of 0, and so no elements"
    return InvalidRequest(request_prefix(identifier) + text)
