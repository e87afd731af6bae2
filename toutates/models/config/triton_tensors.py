"""``input`` and ``output`` of a config.pbtxt: what is declared of each tensor, in Triton's words where it is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from toutates.models.config.declared import DeclaredTensor
from toutates.models.config.problems import Problems
from toutates.models.config.yaml_section import MAX_DIMENSION, MAX_RANK
from toutates.protocol.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from toutates.protocol.signature import reshape_fits

__all__ = ["declared_tensors"]


def declared_tensors(
    config: ModelConfig, model: str, problems: Problems, *, all_required: bool = True
) -> tuple[tuple[DeclaredTensor, ...], tuple[DeclaredTensor, ...]]:
    """The inputs and the outputs that a ModelConfig declares.

    Args:
        config: the message.
        model: name of the model's directory.
        problems: get what is wrong.
        all_required: whether a batched model of this backend needs all of its inputs.
    """
    reader = _Tensors(model, bool(config.max_batch_size) and all_required, problems)
    return reader.read("input", config.input), reader.read("output", config.output)


class _Tensors:
    """Reads tensors of one ModelConfig."""

    def __init__(self, model: str, all_required: bool, problems: Problems) -> None:
        self._model, self._all_required, self._problems = model, all_required, problems

    def read(self, role: str, tensors: Sequence[ModelInput | ModelOutput]) -> tuple[DeclaredTensor, ...]:
        seen: set[str] = set()
        return tuple(self._tensor(role, tensor, seen) for tensor in tensors)

    def _tensor(self, role: str, tensor: ModelInput | ModelOutput, seen: set[str]) -> DeclaredTensor:
        name = tensor.name
        key = f"{role} '{name}'"
        if not name:
            self._problems.add(
                role, f"model {role} must specify 'name' for {self._model}", None, "name it as the graph does"
            )
        elif name in seen:
            self._problems.add(key, "is declared twice", None, "keep one of them")
        seen.add(name)
        datatype = DataType.Name(tensor.data_type)
        if datatype == "TYPE_INVALID":
            problem = f"model {role} '{name}' must specify 'data_type' for {self._model}"
            self._problems.add(f"{key} data_type", problem, None, "write such as TYPE_FP32")
        has_reshape = tensor.HasField("reshape")
        dims, reshape = tuple(tensor.dims), tuple(tensor.reshape.shape)
        if not dims:
            self._problems.add(
                f"{key} dims",
                f"model {role} '{name}' must specify 'dims' for {self._model}",
                None,
                "write such as [ 8 ]",
            )
        self._check_dims(f"{key} dims", f"model {role} '{name}'", "dimension", dims)
        if has_reshape:
            self._check_dims(f"{key} reshape", f"model {role} '{name}'", "reshape dimensions", reshape)
            if not reshape_fits(dims, reshape):
                self._problems.add(
                    f"{key} reshape",
                    f"model {role} '{name}' for {self._model} has different size for dims and reshape",
                    list(reshape),
                    "write shapes of as many elements, with the same dimensions open",
                )
        optional = isinstance(tensor, ModelInput) and tensor.optional
        if optional and self._all_required:
            self._problems.add(
                f"{key} optional",
                "optional inputs are for models without batching",
                True,
                "write max_batch_size: 0, or remove it",
            )
        return DeclaredTensor(name, datatype, dims, reshape if has_reshape else dims, optional)

    def _check_dims(self, key: str, who: str, what: str, dims: tuple[int, ...]) -> None:
        if len(dims) > MAX_RANK or any(size != -1 and not 1 <= size <= MAX_DIMENSION for size in dims):
            self._problems.add(
                key,
                f"{who}: {what} must be integer >= 1, or -1 to indicate a variable-size dimension",
                list(dims[: MAX_RANK + 1]),
                f"write at most {MAX_RANK} sizes up to {MAX_DIMENSION}",
            )
