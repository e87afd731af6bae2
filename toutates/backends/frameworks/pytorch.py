"""PyTorch's models: TorchScript (``model.pt``), and what ``torch.export.save`` has written (``model.pt2``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final

import numpy as np
import torch

from toutates.backends.frameworks.torch_state import Kept, ModuleState
from toutates.backends.interface import Array, Backend, Instance, SequenceInstance, Source, Tensor, Tensors

__all__ = ["PyTorch"]

#: Names that tell a position, such as INPUT__0 and ARGS[0]; and those that tell a key, such as KWARGS[x].
_POSITION: Final = re.compile(r".*__(\d+)|(?:ARGS|RESULT)\[(\d+)\]")
_KEY: Final = re.compile(r"(?:KWARGS|RESULT)\[([^\]]+)\]")
_MAX_SAID: Final = 300
#: Lengths that open dimensions are tried with.
_LENGTHS: Final = (1, 8, 64, 224)

#: Where a tensor goes to, or comes from: a position or a key.
Place = int | str


class PyTorch(Backend):
    """A model whose tensors config.pbtxt declares, because its file does not tell them.

    The tensors of a side are named by position (``INPUT__0``; of exported models also ``ARGS[0]``, ``RESULT[0]``), by
    the arguments of ``forward`` (``KWARGS[x]``), or, with any other names, stand in the configuration's order.

    A module that writes to its buffers or attributes has a state, which a run when it is loaded shows. Each sequence
    has a state of its own, or each run begins with a fresh one.
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
        self._states: dict[str, ModuleState] = {}
        self._inputs = _places([tensor.name for tensor in source.inputs], self._arguments("cpu"))
        self._outputs = _places([tensor.name for tensor in source.outputs], ())
        self._types = {tensor.name: tensor.datatype for tensor in (*source.inputs, *source.outputs)}
        self._writes_to, self._parameters = self._try(source.inputs)
        self._keeps_state = bool(self._writes_to) and source.keeps_state(f"it writes to {self._writes_to}")
        # A module may do anything with its rows.
        return Tensors(source.inputs, source.outputs, independent_rows=None, keeps_state=self._keeps_state)

    def _try(self, inputs: Sequence[Tensor]) -> tuple[str, list[str]]:
        """What the module's runs write to, and which of that are parameters.

        The module that has run is not used where it has written to anything.
        """
        module = self._module("cpu")
        state = ModuleState(module)
        runner = self._runner(module, "cpu")
        for length, number in product(_LENGTHS, (1, 0)):
            with suppress(Exception):  # which says nothing
                runner.run_plain({tensor.name: _filled(tensor, length, number) for tensor in inputs})
                break
        written = state.written
        if written:
            self._modules.clear()
        return written, state.written_parameters

    def _runner(self, module: Any, where: str, state: ModuleState | None = None) -> _Runner:
        return _Runner(module, where, self._inputs, self._outputs, self._types, self._inference_mode, state)

    def instance(self, number: int, device: str) -> Instance | SequenceInstance:
        """See ``Backend``. Instances of one device share the module, unless it keeps a state."""
        where = "cpu"
        if device.startswith("gpu") or (device == "auto" and torch.cuda.is_available()):
            where = f"cuda:{device.removeprefix('gpu:') if device != 'auto' else 0}"
        module = self._module(where)
        if not self._writes_to:
            state = ModuleState(module) if where not in self._states else self._states[where]
            self._states[where] = state
            return self._runner(module, where, state if state.has_tensors else None)
        del self._modules[where]
        state = ModuleState(module, self._parameters)
        runner = self._runner(module, where)
        return _Sequences(runner, state) if self._keeps_state else _Stateless(runner, state)

    def free(self) -> None:
        """See ``Backend``."""
        self._modules, self._states = {}, {}

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
    """One instance.

    Args:
        state: what the module could write to; None for nothing, or where somebody else looks after it.
    """

    def __init__(
        self,
        module: Any,
        where: str,
        inputs: Mapping[str, Place],
        outputs: Mapping[str, Place],
        types: Mapping[str, str],
        inference_mode: bool,
        state: ModuleState | None = None,
    ) -> None:
        self._module, self._where, self._types = module, where, types
        self._inputs, self._outputs = inputs, outputs
        self._mode: Callable[[], Any] = torch.inference_mode if inference_mode else torch.no_grad

        self._state = state

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        outputs = self.run_plain(inputs)
        if self._state is not None:
            self._state.check()
        return outputs

    def run_plain(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run without a look at what the module has written to."""
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


class _Stateless:
    """One instance whose runs begin with a fresh state each."""

    def __init__(self, runner: _Runner, state: ModuleState) -> None:
        self._runner, self._state = runner, state

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self._state.put(None)
        return _copies(self._runner.run_plain(inputs))


class _Sequences:
    """One instance with a state for each sequence that it serves."""

    def __init__(self, runner: _Runner, state: ModuleState) -> None:
        self._runner, self._state = runner, state
        self._kept: dict[int, Kept] = {}

    def run_sequence(self, inputs: Mapping[str, Array], slot: int, *, begins: bool) -> Mapping[str, Array]:
        self._state.put(None if begins else self._kept.get(slot))
        outputs = _copies(self._runner.run_plain(inputs))
        self._kept[slot] = self._state.take()
        return outputs


def _copies(outputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Outputs that are no part of what the next run writes to."""
    return {name: array.copy() for name, array in outputs.items()}


def _filled(tensor: Tensor, length: int, number: int) -> Array:
    """An input with one value everywhere: one row, and open dimensions of a length."""
    rows = (1,) if tuple(tensor.shape[:1]) == (-1,) else tuple(tensor.shape[:1])
    shape = (*rows, *[length if size == -1 else size for size in tensor.shape[1:]])
    dtype = np.uint16 if tensor.datatype == "BF16" else _numpy_type(tensor.datatype)
    return np.full(shape, 0x3F80 * number if tensor.datatype == "BF16" else number, dtype)


def _numpy_type(datatype: str) -> str:
    """NumPy's name of Triton's datatype."""
    return datatype.lower().replace("fp", "float")


def _as_torch(array: Array, datatype: str) -> torch.Tensor:
    if datatype == "BF16":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array, order="C"))  # a scalar stays one


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
