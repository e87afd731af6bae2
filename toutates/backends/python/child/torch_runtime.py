"""PyTorch's Python runtime, as a Python model: a class of ``torch.nn.Module`` in model.py, or TorchScript in model.pt.

The weights of a class are the state dict in the ``.pt`` file of the same stem. Nothing but tensors is read of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

try:
    import torch
except ImportError as error:
    remedy = "install the extra pytorch, or name an environment that has it as EXECUTION_ENV_PATH"
    raise ImportError(f"PyTorch's Python runtime needs torch: {remedy}") from error

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """Runs the module with the inputs by position, in the configuration's order."""

    def initialize(self, args: dict[str, str]) -> None:
        """Make the module. Its parameters and buffers are on the instance's device."""
        config = json.loads(args["model_config"])
        parameters = {key: one["string_value"] for key, one in config["parameters"].items()}
        torch.set_num_threads(_number(parameters, "NUM_THREADS"))
        if torch.get_num_interop_threads() != _number(parameters, "NUM_INTEROP_THREADS"):
            torch.set_num_interop_threads(_number(parameters, "NUM_INTEROP_THREADS"))
        self._inputs = [one["name"] for one in config["input"]]
        self._outputs = [one["name"] for one in config["output"]]
        strings = [one["name"] for one in config["input"] + config["output"] if one["data_type"] == "TYPE_STRING"]
        if strings:
            raise ValueError(f"tensor '{strings[0]}' is of strings, which are not given to PyTorch's models")
        path = os.path.join(pb_utils.get_model_dir(), config["default_model_filename"])
        kind = args["model_instance_kind"]
        self._device: Any = torch.device(f"cuda:{args['model_instance_device_id']}" if kind == "GPU" else "cpu")
        module = _of_class(path, self._device) if path.endswith(".py") else torch.jit.load(path, self._device)
        if kind == "MODEL":
            found = next(iter(module.parameters()), None)
            if found is None:
                raise ValueError("Cannot determine model device")
            self._device = found.device
        else:
            module = module.to(self._device)
        module.eval()
        self._buffers = _Buffers(module)
        self._stateless = parameters.get("stateless", "false").strip().lower() in ("1", "true", "on", "yes")
        options = parameters.get("TORCH_COMPILE_OPTIONAL_PARAMETERS")
        if options is not None:
            chosen = json.loads(options)
            if "model" in chosen:
                raise ValueError("'model' is not an optional parameter for 'torch.compile'")
            module = torch.compile(module, **chosen)
        self._module = module

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the rows of all requests, which come as one."""
        [request] = requests
        tensors = []
        for name in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ValueError(f"input '{name}' is missing, and inputs are given by position")
            tensors.append(torch.from_dlpack(tensor.to_dlpack()).to(self._device))
        if self._stateless:
            self._buffers.restore()
        try:
            with torch.inference_mode():
                result = self._module(*tensors)
        finally:
            written = "" if self._stateless else self._buffers.restore()
        if written:
            raise RuntimeError(
                f"the module has written to its buffer {written}, which the next caller would see; write the parameter "
                "stateless: true, where each run begins with the buffers as they were made"
            )
        results = result if isinstance(result, (tuple, list)) else [result]
        if len(results) < len(self._outputs) or not all(isinstance(one, torch.Tensor) for one in results):
            raise ValueError(f"the module gives {len(results)} values, expected {len(self._outputs)} tensors")
        outputs = [
            pb_utils.Tensor.from_dlpack(name, self._buffers.apart(one.detach().cpu().contiguous()))
            for name, one in zip(self._outputs, results)
        ]
        return [pb_utils.InferenceResponse(outputs)]


class _Buffers:
    """The buffers of a module as they were made.

    Args:
        module: that has not run.
    """

    def __init__(self, module: Any) -> None:
        is_script = isinstance(module, torch.jit.ScriptModule)
        #: of each buffer: the part that has it, its name, itself, a copy; TorchScript's are never other tensors
        self._all = [
            (None if is_script else part, name, buffer, buffer.detach().clone())
            for part in module.modules()
            for name, buffer in part.named_buffers(recurse=False)
        ]
        self._versions = [buffer._version for _, _, buffer, _ in self._all]

    def restore(self) -> str:
        """Undo what runs have written; returns the name of a buffer that was written to, or ""."""
        found = ""
        for at, (part, name, buffer, fresh) in enumerate(self._all):
            is_other = part is not None and part._buffers.get(name) is not buffer
            if is_other or buffer._version != self._versions[at]:
                found = name
                with torch.no_grad():
                    buffer.copy_(fresh)
                if part is not None and is_other:
                    part._buffers[name] = buffer
                self._versions[at] = buffer._version
        return found

    def apart(self, tensor: Any) -> Any:
        """An output that shares no memory with a buffer, which is written to again."""
        where = tensor.untyped_storage().data_ptr()
        shared = any(buffer.untyped_storage().data_ptr() == where for _, _, buffer, _ in self._all)
        return tensor.clone() if shared else tensor


def _number(parameters: dict[str, str], key: str) -> int:
    return int(parameters.get(key, "1"))


def _of_class(path: str, device: Any) -> Any:
    """An object of the first class of a file that is a module, with its weights if there are any."""
    stem = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(stem, path)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    sys.modules[stem] = source
    spec.loader.exec_module(source)
    classes = [one for _, one in sorted(vars(source).items()) if isinstance(one, type)]
    modules = [one for one in classes if issubclass(one, torch.nn.Module)]
    # Those of its own before those that it imports.
    modules.sort(key=lambda one: one.__module__ != stem)
    if not modules:
        raise ValueError("Cannot find a subclass of torch.nn.Module")
    module = modules[0]()
    weights = os.path.splitext(path)[0] + ".pt"
    if os.path.isfile(weights):
        module.load_state_dict(torch.load(weights, map_location=device, weights_only=True))
    return module
