"""What a config.pbtxt declares of a model's tensors, and whether the graph is so, in Triton's words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from toutates.models.config.problems import Problems
from toutates.models.config.settings import ModelSettings, Shapes
from toutates.protocol.signature import TensorSpec

__all__ = ["Declared", "DeclaredTensor"]


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """One entry of ``input`` or ``output``.

    Attributes:
        name: of the tensor.
        datatype: such as ``TYPE_FP32``.
        dims: as clients see it, without the batch dimension.
        shape: as the graph is to have it, likewise.
        optional: whether requests may leave it out.
        narrows: whether it may fix sizes that the graph leaves open, as every input may.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    optional: bool = False
    narrows: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """The tensors that a config.pbtxt declares.

    Attributes:
        source: the file, for errors.
        model: the model's name.
        max_batch_size: as the file has it; 0 if it has none.
        inputs, outputs: () where the file leaves them to the graph.
        is_unbatched: whether the file says that the model is not batched, and does not only leave that out.
    """

    source: Path
    model: str
    max_batch_size: int
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    is_unbatched: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to the graph, which then is not batched without ``max_batch_size``."""
        return bool(self.inputs and self.outputs)

    def apply(
        self, settings: ModelSettings, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> ModelSettings:
        """Compare with the graph.

        Args:
            settings: what else the file says.
            inputs, outputs: of the graph, with whole shapes; ``optional`` says that the graph has a default.

        Returns:
            The settings, with the tensors' shapes.

        Raises:
            ConfigurationError: they differ; with a line for each difference.
        """
        problems = Problems(self.source)
        whole = [*inputs, *outputs]
        batchable = bool(whole) and all(tensor.shape[:1] == (-1,) and not tensor.optional for tensor in whole)
        batched = self.max_batch_size > 0 or (batchable and not self.is_complete and not self.is_unbatched)
        if self.max_batch_size and not self.is_complete and not batchable:
            fixed = [tensor.name for tensor in whole if tensor.shape[:1] != (-1,) or tensor.optional]
            problems.add(
                "max_batch_size",
                f"autofill failed for model '{self.model}': model does not support batching while non-zero "
                f"max_batch_size is specified; the first dimension is fixed of {', '.join(fixed)}",
                self.max_batch_size,
                "write max_batch_size: 0, or export the model with an open batch dimension",
            )
        if self.inputs:
            self._check_inputs(inputs, batched, problems)
        for declared in self.outputs:
            graph = next((tensor for tensor in outputs if tensor.name == declared.name), None)
            if graph is None:
                _refuse_unexpected("output", declared.name, outputs, problems)
            else:
                self._check_tensor("output", declared, graph, batched, problems)
        problems.raise_all()
        batch = (-1,) if batched else ()
        declared_inputs, declared_outputs = list(self.inputs), list(self.outputs)
        if not batched:
            scalars = {tensor.name for tensor in whole if not tensor.shape}
            declared_inputs, declared_outputs = _as_scalars(self.inputs, scalars), _as_scalars(self.outputs, scalars)
        return replace(
            settings,
            input_shapes=_shapes(declared_inputs, batch),
            output_shapes=_shapes(declared_outputs, batch),
            input_wire_shapes=_wire_shapes(declared_inputs, batch),
            output_wire_shapes=_wire_shapes(declared_outputs, batch),
            required_inputs=tuple(tensor.name for tensor in self.inputs if not tensor.optional),
            outputs=tuple(tensor.name for tensor in self.outputs),
        )

    def _check_inputs(self, inputs: Sequence[TensorSpec], batched: bool, problems: Problems) -> None:
        by_name = {tensor.name: tensor for tensor in inputs}
        names = {declared.name for declared in self.inputs}
        missing = [tensor.name for tensor in inputs if tensor.name not in names and not tensor.optional]
        if missing:
            given = len(by_name.keys() & names)
            problems.add(
                "input",
                f"unable to load model '{self.model}', configuration expects {len(self.inputs)} inputs, model "
                f"provides {given + len(missing)}",
                None,
                f"add {', '.join(missing)}, or leave `input` out altogether",
            )
        for declared in self.inputs:
            graph = by_name.get(declared.name)
            if graph is None:
                _refuse_unexpected("input", declared.name, inputs, problems)
                continue
            self._check_tensor("input", declared, graph, batched, problems)
            if declared.optional and not graph.optional:
                problems.add(
                    f"input '{declared.name}' optional",
                    "the graph has no default for the input",
                    True,
                    "remove it, or give the graph an initializer of that name",
                )

    def _check_tensor(
        self,
        role: str,
        declared: DeclaredTensor,
        graph: TensorSpec,
        batched: bool,
        problems: Problems,
    ) -> None:
        key = f"{role} '{declared.name}'"
        if declared.datatype != graph.datatype.config_name:
            problems.add(
                f"{key} data_type",
                f"unable to load model '{self.model}', configuration expects datatype {declared.datatype} for "
                f"{role} '{declared.name}', model provides {graph.datatype.config_name}",
                None,
                f"write {graph.datatype.config_name}",
            )
        problem = self._shape_problem(role, declared, graph, batched)
        if problem:
            own = list(graph.shape[1:] if batched else graph.shape)
            remedy = f"write dims: {own}" if own else "write dims: [ 1 ]"
            if batched and not own:
                remedy += " and reshape { shape: [ ] }"
            if batched and graph.shape[:1] != (-1,):
                remedy = "write max_batch_size: 0, or export the model with an open batch dimension"
            problems.add(f"{key} dims", problem, None, remedy)

    def _shape_problem(self, role: str, declared: DeclaredTensor, graph: TensorSpec, batched: bool) -> str:
        prefix = f"model '{self.model}', tensor '{declared.name}'"
        # ONNX Runtime reports no dimensions for a scalar, and for a tensor whose rank the graph leaves open.
        if not graph.shape and declared.shape:
            return ""
        full = declared.shape
        if batched:
            if graph.shape[:1] != (-1,):
                return (
                    f"{prefix}: for the model to support batching the shape should have at least 1 dimension and the "
                    f"first dimension must be -1; but shape expected by the model is {_shown(graph.shape)}"
                )
            full = (-1, *declared.shape)
        narrows = declared.narrows or role == "input"
        if len(full) == len(graph.shape) and all(
            size == own or (own == -1 and narrows) or (size == -1 and role == "output")
            for size, own in zip(full, graph.shape, strict=True)
        ):
            return ""
        batch = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            "complete shape "
            if batched
            else "shape "
        )
        return (
            f"{prefix}: the model expects {len(graph.shape)} dimensions (shape {_shown(graph.shape)}) but the model "
            f"configuration specifies {len(full)} dimensions ({batch}{_shown(full)})"
        )


def _refuse_unexpected(role: str, name: str, tensors: Sequence[TensorSpec], problems: Problems) -> None:
    allowed = ", ".join(tensor.name for tensor in tensors)
    problem = f"unexpected inference {role} '{name}', allowed {role}s are: {allowed}"
    problems.add(role, problem, None, "name tensors as the graph does")


def _as_scalars(tensors: Sequence[DeclaredTensor], scalars: Collection[str]) -> list[DeclaredTensor]:
    """The tensors, those of dims [1] without dimensions where the graph has none: a config.pbtxt has no other way."""
    return [
        replace(tensor, shape=()) if tensor.name in scalars and tensor.shape == (1,) else tensor for tensor in tensors
    ]


def _shapes(tensors: Sequence[DeclaredTensor], batch: tuple[int, ...]) -> Shapes:
    return MappingProxyType({tensor.name: (*batch, *tensor.shape) for tensor in tensors})


def _wire_shapes(tensors: Sequence[DeclaredTensor], batch: tuple[int, ...]) -> Shapes:
    return MappingProxyType({tensor.name: (*batch, *tensor.dims) for tensor in tensors if tensor.dims != tensor.shape})


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
