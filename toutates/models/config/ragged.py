"""``ragged`` of a config.yaml: rows of different shape share a batch without padding, as ``engine.ragged`` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast, get_args

from toutates.engine.ragged.ragged import DEFAULT_MOST_ELEMENTS, BatchInput, BatchInputKind, Ragged
from toutates.models.config.problems import Problems
from toutates.models.config.yaml_section import MAX_DIMENSION, Section
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

__all__ = [
    "BATCH_INPUT_TYPES",
    "KINDS",
    "MadeInput",
    "RaggedKeys",
    "RaggedSettings",
    "ScatteredOutput",
    "ragged_of",
    "read_ragged",
    "seen_by_clients",
]

KINDS: Final[tuple[BatchInputKind, ...]] = get_args(BatchInputKind)
#: Datatypes that a batch input may have. Triton has no INT64.
BATCH_INPUT_TYPES: Final = ("INT32", "INT64", "FP32")


@dataclass(frozen=True, slots=True)
class MadeInput:
    """An input that the server makes of what is in a batch.

    Attributes:
        name: of the graph's input.
        kind: what it holds.
        source: the input that this is said of.
        datatype: such as ``INT32``.
    """

    name: str
    kind: BatchInputKind
    source: str
    datatype: str


@dataclass(frozen=True, slots=True)
class ScatteredOutput:
    """An output whose elements lie end to end.

    Attributes:
        source: the input whose sizes its open dimensions have.
        shape: as clients see it, the batch dimension included as -1.
    """

    source: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RaggedSettings:
    """How rows of different shape share a batch without padding.

    Attributes:
        inputs: ragged ones by name, with their shape as clients see it, the batch dimension included as -1.
        made: inputs that the server makes.
        outputs: that are cut apart by the shape of an input, by name.
        max_batch_elements: elements of ragged inputs in a batch; a request with more runs alone.
    """

    inputs: Mapping[str, tuple[int, ...]]
    made: tuple[MadeInput, ...] = ()
    outputs: Mapping[str, ScatteredOutput] = field(default_factory=dict)
    max_batch_elements: int = DEFAULT_MOST_ELEMENTS


@dataclass(frozen=True, slots=True)
class RaggedKeys:
    """What a file calls the parts, for errors: with {} for a tensor's name."""

    inputs: str = "ragged.inputs.{}"
    made: str = "ragged.batch_inputs.{}"
    outputs: str = "ragged.outputs.{}"
    whole: str = "ragged"


def read_ragged(section: Section | None) -> RaggedSettings | None:
    """Read the section ``ragged``; what is wrong goes to its list."""
    if section is None:
        return None
    inputs = section.shapes("inputs")
    _check_shapes(section.mapping("inputs", "inputs: {values: [-1, -1]}"), inputs)
    made: list[MadeInput] = []
    given = section.mapping("batch_inputs", "batch_inputs: {ends: {kind: ends, of: values, datatype: INT32}}")
    for name, own in given.subsections("ends: {kind: ends, of: values, datatype: INT32}") if given is not None else ():
        kind = cast(BatchInputKind, own.choice("kind", KINDS))
        made.append(MadeInput(name, kind, own.required_text("of", "values"), own.choice("datatype", BATCH_INPUT_TYPES)))
        own.refuse_unknown_keys()
    outputs: dict[str, ScatteredOutput] = {}
    cut = section.mapping("outputs", "outputs: {scaled: {of: values, shape: [-1, -1]}}")
    for name, own in cut.subsections("scaled: {of: values, shape: [-1, -1]}") if cut is not None else ():
        shape = own.shape("shape")
        if shape[:1] != (-1,) or len(shape) < 2:
            own.refuse("shape", *_NO_ROWS, list(shape), _ROWS_REMEDY)
        outputs[name] = ScatteredOutput(own.required_text("of", "values"), shape)
        own.refuse_unknown_keys()
    if not inputs and not made:
        section.refuse("inputs", "names no input", None, "name the inputs whose rows differ in shape")
    most = section.optional_integer("max_batch_elements", MAX_DIMENSION, DEFAULT_MOST_ELEMENTS)
    section.refuse_unknown_keys()
    return RaggedSettings(inputs, tuple(made), MappingProxyType(outputs), most or DEFAULT_MOST_ELEMENTS)


_NO_ROWS: Final = ("is not the shape of rows",)
_ROWS_REMEDY: Final = "write such as [-1, -1]: the batch dimension, and those of a row"


def _check_shapes(section: Section | None, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if section is not None and (shape[:1] != (-1,) or len(shape) < 2):
            section.refuse(name, *_NO_ROWS, list(shape), _ROWS_REMEDY)


# --- against the graph -----------------------------------------------------------------------------------------------


def seen_by_clients(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    settings: RaggedSettings,
    source: Path,
    keys: RaggedKeys,
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The tensors of a graph as clients see them: ragged inputs with rows, batch inputs left out, outputs cut apart.

    Args:
        inputs, outputs: of the graph, with whole shapes.
        settings: of the version.
        source: the file to name in errors.
        keys: of the file.

    Raises:
        ConfigurationError: the settings contradict the graph, or each other; with a line for each problem.
    """
    check = _Check(inputs, outputs, settings, Problems(source), keys)
    check.inputs()
    check.made()
    check.outputs()
    check.problems.raise_all()
    made = {own.name for own in settings.made}
    seen = [
        replace(tensor, shape=settings.inputs.get(tensor.name, tensor.shape))
        for tensor in inputs
        if tensor.name not in made
    ]
    cut = settings.outputs
    return seen, [replace(one, shape=cut[one.name].shape) if one.name in cut else one for one in outputs]


def ragged_of(settings: RaggedSettings | None, signature: Signature, source: Path, keys: RaggedKeys) -> Ragged | None:
    """The settings by the indices of a version's tensors; None where there are none.

    Args:
        settings: of the version, which fit the graph (``seen_by_clients``).
        signature: the tensors that clients see.
        source: the file to name in errors.
        keys: of the file.

    Raises:
        ConfigurationError: the version cannot have them; with a line for each problem.
    """
    if settings is None:
        return None
    problems = Problems(source)
    if not signature.batched:
        problems.add(keys.whole, "is for models whose requests are batched", None, "remove it, or batch the model")
    for tensor in (*signature.inputs, *signature.outputs):
        if not tensor.datatype.size:
            problem = f"does not go with tensor '{tensor.name}' of BYTES"
            problems.add(keys.whole, problem, None, "remove it, or export the model without strings")
    shown = [(keys.inputs, one) for one in signature.inputs if one.name in settings.inputs]
    shown += [(keys.outputs, one) for one in signature.outputs if one.name in settings.outputs]
    for key, tensor in shown:
        if tensor.reshape is not None:
            problem = "is shown to clients in another shape than the rows have"
            problems.add(key.format(tensor.name), problem, None, "remove it from input_wire_shapes, output_wire_shapes")
    problems.raise_all()
    places = {tensor.name: at for at, tensor in enumerate(signature.inputs)}
    made = []
    for own in settings.made:
        rank = len(signature.inputs[places[own.source]].graph_shape)
        tensor = TensorSpec(own.name, BY_NAME[own.datatype], (rank,) if own.kind == "shapes" else ())
        made.append(BatchInput(tensor, own.kind, places[own.source]))
    return Ragged(
        frozenset(places[name] for name in settings.inputs),
        tuple(made),
        MappingProxyType(
            {
                at: places[settings.outputs[tensor.name].source]
                for at, tensor in enumerate(signature.outputs)
                if tensor.name in settings.outputs
            }
        ),
        settings.max_batch_elements,
    )


class _Check:
    """Holds the settings against the tensors of a graph."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        settings: RaggedSettings,
        problems: Problems,
        keys: RaggedKeys,
    ) -> None:
        self._inputs = {tensor.name: tensor for tensor in inputs}
        self._outputs = {tensor.name: tensor for tensor in outputs}
        self._settings, self._keys = settings, keys
        self.problems = problems

    def inputs(self) -> None:
        """Ragged inputs have one open dimension in the graph."""
        for name in self._settings.inputs:
            key = self._keys.inputs.format(name)
            tensor = self._find(key, name, self._inputs, "input")
            if tensor is not None and tensor.shape != (-1,):
                problem = f"the graph has the input as {list(tensor.shape)}, and a ragged one has one open dimension"
                self.problems.add(key, problem, None, "export the model for the elements of all rows end to end")

    def made(self) -> None:
        """Batch inputs are the graph's, in the form of their kind; nobody else gives them; their sources are there."""
        seen: set[str] = set()
        for own in self._settings.made:
            key = self._keys.made.format(own.name)
            if own.name in seen:
                self.problems.add(key, "is made twice", None, "keep one of them")
            seen.add(own.name)
            if own.name in self._settings.inputs:
                self.problems.add(key, "is a ragged input of clients too", None, "keep one of them")
            self._check_source(key, own.source)
            tensor = self._find(key, own.name, self._inputs, "input")
            if tensor is None:
                continue
            if tensor.datatype.name != own.datatype:
                problem = f"has the datatype {own.datatype}, and the graph's input {tensor.datatype.name}"
                remedy = f"write {tensor.datatype.name}"
                if tensor.datatype.name not in BATCH_INPUT_TYPES:
                    remedy = f"export the model with {', '.join(BATCH_INPUT_TYPES[:-1])} or {BATCH_INPUT_TYPES[-1]}"
                self.problems.add(key, problem, None, remedy)
            expected = self._form(own)
            if len(tensor.shape) != len(expected) or any(
                size != -1 and size != made for size, made in zip(tensor.shape, expected, strict=True)
            ):
                problem = f"the graph has the input as {list(tensor.shape)}, and {own.kind} are {list(expected)}"
                self.problems.add(key, problem, None, "choose another kind, or export the model so")

    def outputs(self) -> None:
        """Outputs that are cut have open dimensions only where their source has dimensions."""
        for name, own in self._settings.outputs.items():
            key = self._keys.outputs.format(name)
            self._find(key, name, self._outputs, "output")
            self._check_source(key, own.source)
            rank = len(self._rows_of(own.source) or own.shape)
            if any(size == -1 for size in own.shape[rank:]):
                problem = f"has more open dimensions than input '{own.source}', which is to say their sizes"
                self.problems.add(key, problem, list(own.shape), f"write at most {rank} dimensions, or sizes")

    def _rows_of(self, name: str) -> tuple[int, ...]:
        """The shape of an input for clients; () where there is none."""
        tensor = self._inputs.get(name)
        return self._settings.inputs.get(name, tensor.shape if tensor is not None else ())

    def _form(self, own: MadeInput) -> tuple[int, ...]:
        return (-1, len(self._rows_of(own.source)) - 1) if own.kind == "shapes" else (-1,)

    def _check_source(self, key: str, source: str) -> None:
        made = {own.name for own in self._settings.made}
        if source not in self._inputs or source in made:
            names = ", ".join(name for name in self._inputs if name not in made)
            self.problems.add(key, f"unknown source input name '{source}'", None, f"the clients' inputs: {names}")

    def _find(self, key: str, name: str, tensors: Mapping[str, TensorSpec], role: str) -> TensorSpec | None:
        if name not in tensors:
            names = ", ".join(tensors)
            self.problems.add(key, f"the model has no such {role}", None, f"the model's {role}s: {names}")
        return tensors.get(name)
