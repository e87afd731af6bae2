"""PyTorch's models: TorchScript (``model.pt``), and what ``torch.export.save`` has written (``model.pt2``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from toutates.backends.interface import Array, Backend, Instance, Source, Tensors

__all__ = ["PyTorch"]

#: Names that tell a position, such as INPUT__0 and ARGS[0]; and those that tell a key, such as KWARGS[x].
_POSITION: Final = re.compile(r".*__(\d+)|(?:ARGS|RESULT)\[(\d+)\]")
_KEY: Final = re.compile(r"(?:KWARGS|RESULT)\[([^\]]+)\]")
_MAX_SAID: Final = 300

#: Where a tensor goes to, or comes from: a position or a key.
Place = int | str


class PyTorch(Backend):
    """A model whose tensors config.pbtxt declares, because its file does not tell them.

    The tensors of a side are named by position (``INPUT__0``; of exported models also ``ARGS[0]``, ``RESULT[0]``), by
    the arguments of ``forward`` (``KWARGS[x]``), or, with any other names, stand in the configuration's order.
    """

    interface = 1
    filenames = ("model.pt", "model.pt2")
    gpu = True

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        if not source.inputs or not source.outputs:
            raise ValueError(
                "PyTorch's files do not tell their tensors; declare every input and output in config.pbtxt"
            )
        strings = [tensor.name for tensor in (*source.inputs, *source.outputs) if tensor.datatype == "BYTES"]
        if strings:
            raise ValueError(f"tensor '{strings[0]}' is of strings, which are not given to PyTorch's models")
        self._path, self._exported = source.path, source.path.suffix == ".pt2"
        self._inference_mode = source.flag("INFERENCE_MODE", True)
        threads = source.integer("INTRA_OP_THREAD_COUNT", 0, 0, 1_024)
        _use_threads(threads)
        if source.flag("DISABLE_CUDNN", False):
            torch.backends.cudnn.enabled = False
        if self._exported:
            source.require_pickle("a file of torch.export")
        self._modules: dict[str, Any] = {}
        self._inputs = _places([tensor.name for tensor in source.inputs], self._arguments("cpu"))
        self._outputs = _places([tensor.name for tensor in source.outputs], ())
        self._types = {tensor.name: tensor.datatype for tensor in (*source.inputs, *source.outputs)}
        # A module may do anything with its rows.
        return Tensors(source.inputs, source.outputs, independent_rows=None)

    def instance(self, number: int, device: str) -> Instance:
        """See ``Backend``. Instances of one device share the module."""
        where = "cpu"
        if device.startswith("gpu") or (device == "auto" and torch.cuda.is_available()):
            where = f"cuda:{device.removeprefix('gpu:') if device != 'auto' else 0}"
        return _Runner(self._module(where), where, self._inputs, self._outputs, self._types, self._inference_mode)

    def free(self) -> None:
        """See ``Backend``."""
        self._modules = {}

    def _module(self, where: str) -> Any:
        if where not in self._modules:
            try:
                if self._exported:
                    module = torch.export.load(self._path).module()
                    self._modules[where] = module.to(where)
                else:
                    self._modules[where] = torch.jit.load(str(self._path), map_location=where).eval()
            except Exception as error:
                reason = str(error).strip().splitlines()[0][:_MAX_SAID] if str(error).strip() else type(error).__name__
                raise ValueError(f"PyTorch cannot load '{self._path.name}': {reason}") from error
        return self._modules[where]

    def _arguments(self, where: str) -> Sequence[str]:
        """The names of ``forward``'s arguments; none where they are not known."""
        module = self._module(where)
        if self._exported:
            return ()
        return [argument.name for argument in module.forward.schema.arguments][1:]


#: What models have asked for.
_threads: Final = {1}


def _use_threads(wanted: int) -> None:
    """Set PyTorch's threads, one number for the process: one where no model asks for more."""
    _threads.add(wanted)
    torch.set_num_threads(max(_threads))


class _Runner:
    """One instance."""

    def __init__(
        self,
        module: Any,
        where: str,
        inputs: Mapping[str, Place],
        outputs: Mapping[str, Place],
        types: Mapping[str, str],
        inference_mode: bool,
    ) -> None:
        self._module, self._where, self._types = module, where, types
        self._inputs, self._outputs = inputs, outputs
        self._mode: Callable[[], Any] = torch.inference_mode if inference_mode else torch.no_grad

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        positional: dict[int, Any] = {}
        named: dict[str, Any] = {}
        for name, array in inputs.items():
            place, tensor = self._inputs[name], _as_torch(array, self._types[name]).to(self._where)
            if isinstance(place, int):
                positional[place] = tensor
            else:
                named[place] = tensor
        with self._mode():
            result = self._module(*(positional[at] for at in sorted(positional)), **named)
        return {name: self._output(result, place, name) for name, place in self._outputs.items()}

    def _output(self, result: Any, place: Place, name: str) -> Array:
        found = result
        if isinstance(result, dict):
            found = result.get(place if isinstance(place, str) else name)
        elif isinstance(result, tuple | list):
            found = result[place] if isinstance(place, int) and place < len(result) else None
        elif place not in (0, "RESULT"):
            found = None
        if not isinstance(found, torch.Tensor):
            of = f"{len(result)} values" if isinstance(result, tuple | list | dict) else "one value"
            raise RuntimeError(f"the model gives {of}, and no tensor for output '{name}'")
        found = found.detach().cpu()
        if found.dtype is torch.bfloat16:
            return np.asarray(found.view(torch.int16).numpy()).view(np.uint16)
        return np.asarray(found.numpy())


def _as_torch(array: Array, datatype: str) -> torch.Tensor:
    if datatype == "BF16":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def _places(names: Sequence[str], arguments: Sequence[str]) -> dict[str, Place]:
    """Where each tensor of a side goes, by Triton's conventions of names.

    Raises:
        ValueError: the positions in the names are not 0, 1, 2 and so on.
    """
    matches = [_POSITION.fullmatch(name) for name in names]
    if all(matches):
        found: dict[str, Place] = {
            name: int(match[1] or match[2]) for name, match in zip(names, matches, strict=True) if match is not None
        }
        if sorted(map(int, found.values())) != list(range(len(names))):
            raise ValueError(f"{', '.join(names)} are named by position, and the positions are not 0, 1, 2 and so on")
        return found
    keys = [_KEY.fullmatch(name) for name in names]
    if all(keys):
        return {name: match[1] for name, match in zip(names, keys, strict=True) if match is not None}
    if set(names) <= set(arguments):
        return {name: name for name in names}
    return {name: at for at, name in enumerate(names)}
