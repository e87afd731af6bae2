"""The weights of a model folder: one safetensors file, or several with an index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from toutates.protocol.safetensors import Tensor, open_safetensors
from toutates.repositories.sentence_transformers.documents import read_object
from toutates.system.errors import ConfigurationError
from toutates.system.text import shown

__all__ = ["WEIGHTS", "Weights", "open_weights"]

WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.ckpt.index", "tf_model.h5")
_GRAPHS: Final = ("model.onnx", "onnx/model.onnx")

#: Names that older programs gave to the weights of a layer normalization.
_OLD_NAMES: Final = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

Float32 = npt.NDArray[np.float32]


class Weights:
    """Tensors by name, and which of them have been used.

    Args:
        folder: where they are, for errors.
        tensors: all of them, by name.
        prefix: the encoder's own begin with this, such as ``bert.``; "" for none.
    """

    def __init__(self, folder: Path, tensors: dict[str, Tensor], prefix: str = "") -> None:
        self._folder, self._tensors = folder, tensors
        self._used: set[str] = set()
        self.prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._tensors

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor, which counts as used.

        Args:
            name: of the tensor; that of the encoder's own without the prefix, after a dot.
            shape: that it must have.

        Raises:
            ConfigurationError: it is not there, or has another shape.
        """
        stored = self._stored(name)
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise ConfigurationError(
                "is missing among the weights",
                source=self._folder,
                key=stored,
                remedy="see that config.json and the weights are of the same model",
            )
        if tensor.shape != tuple(shape):
            raise ConfigurationError(
                f"has the shape {list(tensor.shape)}, where config.json has {list(shape)}",
                source=tensor.source,
                key=stored,
                remedy="see that config.json and the weights are of the same model",
            )
        self._used.add(stored)
        return tensor

    def require_all_used(self, passed_over: Iterable[str]) -> None:
        """Refuse weights that nothing has taken: what they are for would be missing from the graph.

        Args:
            passed_over: regular expressions of names, whole, that may be left.

        Raises:
            ConfigurationError: there are some.
        """
        pattern = re.compile("|".join(f"(?:{one})" for one in passed_over))
        left = sorted(name for name in self._tensors if name not in self._used and not pattern.fullmatch(name))
        if left:
            names = ", ".join(shown(name) for name in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ConfigurationError(
                f"has weights that this architecture does not know: {names}{more}",
                source=self._folder,
                remedy="the model is of another architecture than config.json says; merge adapters into the weights "
                "before saving it",
            )

    def _stored(self, name: str) -> str:
        """The name in the file: a leading dot stands for the encoder's prefix."""
        stored = self.prefix + name[1:] if name.startswith(".") else name
        if stored not in self._tensors:
            for new, old in _OLD_NAMES.items():
                if stored.endswith(new):
                    older = stored.removesuffix(new) + old
                    return older if older in self._tensors else stored
        return stored


def open_weights(folder: Path) -> Weights:
    """The weights of a folder.

    Raises:
        ConfigurationError: there are none, or a file is no valid safetensors file.
    """
    if (folder / WEIGHTS).exists():
        return Weights(folder, open_safetensors(folder / WEIGHTS))
    path = folder / _INDEX
    index = read_object(path)
    if index is None:
        found = [name for name in _PICKLES if (folder / name).exists()]
        problem = f"has no {WEIGHTS}" + (f", only {found[0]}" if found else "")
        remedy = "save the model with safetensors: model.save_pretrained(FOLDER)"
        if any((folder / name).is_file() for name in _GRAPHS):
            remedy = "it has an ONNX graph already: copy the folder into the repository, as NAME/1"
        raise ConfigurationError(problem, source=folder, remedy=remedy)
    files = index.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ConfigurationError(
            "maps no names of weights to files", source=path, key="weight_map", remedy="download the file again"
        )
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        if "/" in file or "\0" in file or not file.endswith(".safetensors"):
            raise ConfigurationError(
                "names a file that is no safetensors file of the folder",
                source=path,
                key="weight_map",
                value=shown(file),
                remedy="download the file again",
            )
        for name, tensor in open_safetensors(folder / file).items():
            if files.get(name) != file:
                raise ConfigurationError(
                    f"holds '{shown(name)}', which the index does not place there",
                    source=folder / file,
                    remedy="download the weights again",
                )
            tensors[name] = tensor
    missing = sorted(files.keys() - tensors.keys())
    if missing:
        raise ConfigurationError(
            "is missing in the file that the index names",
            source=path,
            key=shown(missing[0]),
            remedy="download the weights again",
        )
    return Weights(folder, tensors)
