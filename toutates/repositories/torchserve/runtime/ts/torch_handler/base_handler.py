"""The class that most handlers inherit from. Models of ONNX need no torch; all others do."""

from __future__ import annotations

import importlib
import os
from abc import ABC
from typing import Any

import numpy as np

from ts.utils.util import list_classes_from_module, load_label_mapping

__all__ = ["BaseHandler"]


class BaseHandler(ABC):  # noqa: B024  (a base without abstract methods, as handlers know it)
    """Loads the model of an archive; ``handle`` is preprocess, inference and postprocess."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: Any = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: dict[str, Any] = {}
        self.map_location: str | None = None
        self.explain = False
        self.target: Any = 0
        self.model_yaml_config: dict[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Load the model.

        Raises:
            RuntimeError: the archive has none, or what it needs is not installed.
        """
        properties = context.system_properties
        self.context = context
        self.manifest = context.manifest
        self.model_yaml_config = context.model_yaml_config
        model_dir = properties["model_dir"]
        gpu = properties.get("gpu_id")
        self.map_location = "cpu"
        entry = self.manifest.get("model", {})
        serialized = entry.get("serializedFile")
        self.model_pt_path = os.path.join(model_dir, serialized) if serialized else None
        model_file = entry.get("modelFile", "")
        if serialized and serialized.endswith(".onnx"):
            self.model, self.map_location = _onnx_session(str(self.model_pt_path), gpu)
            self.device = self.map_location
        else:
            torch = _torch()
            if gpu is not None and torch.cuda.is_available():
                self.map_location = "cuda"
            self.device = torch.device("cpu" if self.map_location == "cpu" else f"cuda:{gpu}")
            if model_file:
                self.model = self._load_pickled_model(model_dir, model_file, self.model_pt_path)
                self.model.to(self.device)
                self.model.eval()
            elif serialized and serialized.endswith(".pt"):
                self.model = self._load_torchscript_model(self.model_pt_path)
                self.model.eval()
            else:
                raise RuntimeError("No model weights could be loaded")
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))
        self.initialized = True

    def _load_torchscript_model(self, model_pt_path: Any) -> Any:
        return _torch().jit.load(model_pt_path, map_location=self.device)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: Any) -> Any:
        """A model of the archive's own class, with the weights of its state dict."""
        if not os.path.isfile(os.path.join(model_dir, model_file)):
            raise RuntimeError("Missing the model.py file")
        module = importlib.import_module(model_file.removesuffix(".py"))
        classes = list_classes_from_module(module)
        if len(classes) != 1:
            raise ValueError(f"Expected only one class as model definition. {classes}")
        model: Any = classes[0]()
        if model_pt_path:
            model.load_state_dict(_torch().load(model_pt_path, map_location=self.device, weights_only=True))
        return model

    def preprocess(self, data: Any) -> Any:
        """The input of the model: a tensor of torch, or an array where the model is ONNX."""
        if self._is_torch:
            return _torch().as_tensor(data, device=self.device)
        return np.asarray(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The output of the model; an array where the model is ONNX and has one output, a list where it has more."""
        if self._is_torch:
            with _torch().inference_mode():
                return self.model(data.to(self.device), *args, **kwargs)
        names = [one.name for one in self.model.get_inputs()]
        outputs = self.model.run(None, dict(zip(names, (data, *args), strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs

    def postprocess(self, data: Any) -> list[Any]:
        """What is answered, an item for each request."""
        answers: list[Any] = data.tolist()
        return answers

    def handle(self, data: Any, context: Any) -> Any:
        """Answer a batch."""
        self.context = context
        prepared = self.preprocess(data)
        if getattr(context, "explain", False):
            return self.explain_handle(prepared, data)
        return self.postprocess(self.inference(prepared))

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Explain a batch by ``get_insights``, which a handler has to bring."""
        inputs = [row.get("data") or row.get("body") if isinstance(row, dict) else row for row in raw_data]
        self.target = inputs[0].get("target", 0) if inputs and isinstance(inputs[0], dict) else 0
        return self.get_insights(data_preprocess, inputs, self.target)

    def get_insights(self, tensor_data: Any, raw_data: Any, target: Any) -> Any:
        """What explains an output; handlers that offer it override this."""
        raise NotImplementedError("this handler explains nothing: it has no get_insights")

    def describe_handle(self) -> Any:
        """What describes the model; handlers that offer it override this."""
        return None

    @property
    def _is_torch(self) -> bool:
        return not (self.model_pt_path or "").endswith(".onnx")


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "this model needs torch, which is not installed in the environment that runs it: pip install torch"
        ) from error


def _onnx_session(path: str, gpu: int | None) -> tuple[Any, str]:
    """A session of ONNX Runtime, and where it computes."""
    import onnxruntime

    providers: list[Any] = ["CPUExecutionProvider"]
    place = "cpu"
    if gpu is not None and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": gpu}))
        place = "cuda"
    return onnxruntime.InferenceSession(path, providers=providers), place
