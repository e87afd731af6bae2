"""What makes features of tokens: an ONNX graph, or a table of vectors. One for all executors of a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime

from toutates.backends.onnx.failures import execution_failure
from toutates.backends.onnx.provider_names import CPU
from toutates.backends.text.folder import TextFolder
from toutates.backends.text.interface import Float32, Task, VectorForm
from toutates.backends.text.steps import Dense, Features, LayerNorm
from toutates.backends.text.weights import read_weights
from toutates.backends.text.work import Ids, Row
from toutates.system.errors import ExecutionFailed, ModelLoadError
from toutates.system.poison import current

__all__ = ["Encoder", "Graph", "Table"]

_SEGMENTS: Final = ("token_type_ids", "input_type", "input_type_ids", "segment_ids")
#: Outputs with a vector for each token, the best first.
_TOKENS: Final = ("token_embeddings", "last_hidden_state", "hidden_states", "output_0")
_POOLED: Final = ("sentence_embedding", "sentence_embeddings")
_LOGITS: Final = ("logits", "token_embeddings", "output_0")
_INTEGERS: Final[dict[str, np.dtype[Any]]] = {"tensor(int64)": np.dtype(np.int64), "tensor(int32)": np.dtype(np.int32)}
_FLOATS: Final = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"}


class Encoder(Protocol):
    """Makes features of a batch of texts. Any number of threads may run it at once.

    Attributes:
        tokens: how many tokens it has vectors for; 0 if that is not known.
        pads: whether what it computes for a text grows with the longest one of its batch.
        datatype: of the weights, as far as it is known.
        on_cpu: whether all of a run is on the CPU.
    """

    @property
    def tokens(self) -> int: ...
    @property
    def pads(self) -> bool: ...
    @property
    def datatype(self) -> str: ...
    @property
    def on_cpu(self) -> bool: ...

    def run(self, rows: Sequence[Row], length: int) -> Features:
        """Compute a batch.

        Args:
            rows: the texts, of one token at least each.
            length: that they are padded to.

        Raises:
            ExecutionFailed: the run failed.
        """
        ...


class Graph:
    """A graph of ONNX (``Encoder``).

    Args:
        session: of the graph.
        folder: whose graph it is.

    Raises:
        ModelLoadError: it has inputs or outputs that are not known.
    """

    pads = True
    tokens = 0

    def __init__(self, session: onnxruntime.InferenceSession, folder: TextFolder) -> None:
        self._session = session
        self.on_cpu = session.get_providers()[0] == CPU
        self._pad_id, self._pad_left = folder.pad_id, folder.pad_left
        self._inputs: dict[str, np.dtype[Any]] = {}
        self._past: dict[str, npt.NDArray[Any]] = {}
        self._segments = self._mask = ""
        for tensor in session.get_inputs():
            self._take_input(tensor)
        if "input_ids" not in self._inputs:
            raise ModelLoadError(f"the graph has no input 'input_ids'; it has: {_names(session.get_inputs())}")
        outputs = session.get_outputs()
        names = [tensor.name for tensor in outputs]
        self.is_pooled = False
        if folder.task is not Task.EMBED:
            wanted: tuple[str, ...] = _LOGITS
        elif folder.form is VectorForm.SPARSE:
            wanted = _LOGITS
        else:
            wanted = _TOKENS
        chosen = next((name for name in wanted if name in names), "")
        if not chosen and folder.form is VectorForm.DENSE and folder.task is Task.EMBED:
            chosen = next((name for name in _POOLED if name in names), "")
            self.is_pooled = bool(chosen)
        if not chosen:
            raise ModelLoadError(
                f"the graph has none of the outputs {', '.join(wanted)}; it has: {_names(outputs)}. Export it again "
                f"for the task of the model, which is {folder.task.value}"
            )
        self._output = chosen
        tensor = outputs[names.index(chosen)]
        if tensor.type not in _FLOATS:
            raise ModelLoadError(f"the graph's output '{chosen}' is {tensor.type}, expected floating-point numbers")
        last = tensor.shape[-1] if tensor.shape else 0
        self._width = last if isinstance(last, int) else 0
        rank = 2 if self.is_pooled or (folder.task is not Task.EMBED and folder.score_tokens is None) else 3
        if len(tensor.shape) not in (0, rank):
            raise ModelLoadError(
                f"the graph's output '{chosen}' has the shape {list(tensor.shape)}, and the task of the model, which "
                f"is {folder.task.value}, needs {rank} dimensions; export it again for that task"
            )
        self._rank = rank
        self.datatype = _FLOATS[tensor.type]
        if self.is_pooled:
            self._check_pooled(folder)

    def _take_input(self, tensor: Any) -> None:
        name = tensor.name
        if name.startswith("past_key_values."):
            if len(tensor.shape) != 4 or tensor.type not in _FLOATS:
                raise ModelLoadError(f"the graph's input '{name}' is no cache of keys and values")
            kind = _FLOATS[tensor.type]
            sizes = [size if isinstance(size, int) else 0 for size in tensor.shape]
            self._past[name] = np.zeros((0, sizes[1], 0, sizes[3]), kind)
            return
        if name not in ("input_ids", "attention_mask", "position_ids", *_SEGMENTS):
            raise ModelLoadError(f"the graph has the input '{name}', which this server does not know how to fill")
        if tensor.type not in _INTEGERS or len(tensor.shape) != 2:
            raise ModelLoadError(
                f"the graph's input '{name}' is {tensor.type} of shape {list(tensor.shape)}, expected [batch, length] "
                "of int64 or int32"
            )
        if any(isinstance(size, int) for size in tensor.shape):
            raise ModelLoadError(
                f"the graph's input '{name}' has the fixed shape {list(tensor.shape)}; export it again with dynamic "
                "axes for batch and length"
            )
        self._inputs[name] = _INTEGERS[tensor.type]
        if name in _SEGMENTS:
            self._segments = name

    def _check_pooled(self, folder: TextFolder) -> None:
        """A graph that makes one vector of a text: which modules are inside of it must be known."""
        layers = [step for step in folder.steps if isinstance(step, (Dense, LayerNorm))]
        if any(isinstance(step, LayerNorm) for step in layers):
            raise ModelLoadError(
                "whether the graph has the LayerNorm of modules.json cannot be known; export its token_embeddings too"
            )
        widths = [step.weight.shape[1] for step in layers if isinstance(step, Dense)]
        if widths and self._width != widths[-1]:
            raise ModelLoadError(
                f"the graph's output '{self._output}' has {self._width or 'unknown'} dimensions, and after the Dense "
                f"of modules.json it must have {widths[-1]}; export its token_embeddings too"
            )

    def run(self, rows: Sequence[Row], length: int) -> Features:
        """See ``Encoder``."""
        count = len(rows)
        ids = np.full((count, length), self._pad_id, self._inputs["input_ids"])
        mask = np.zeros((count, length), np.int64)
        segments = np.zeros_like(ids) if self._segments else None
        is_full = True
        for at, row in enumerate(rows):
            size = len(row.ids)
            part = slice(length - size, length) if self._pad_left else slice(0, size)
            ids[at, part] = row.ids
            mask[at, part] = 1
            is_full &= size == length
            if segments is not None and row.segments is not None:
                segments[at, part] = row.segments
        feed: dict[str, Any] = {"input_ids": ids}
        inputs = self._inputs
        if "attention_mask" in inputs:
            feed["attention_mask"] = mask.astype(inputs["attention_mask"], copy=False)
        if segments is not None:
            feed[self._segments] = segments.astype(inputs[self._segments], copy=False)
        if "position_ids" in inputs:
            feed["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype(inputs["position_ids"])
        for name, empty in self._past.items():
            feed[name] = np.zeros((count, *empty.shape[1:]), empty.dtype)
        try:
            [values] = self._session.run([self._output], feed)
        except Exception as error:  # ONNX Runtime's exceptions share no base class of its own
            raise execution_failure(error) from error
        if values.ndim != self._rank or values.shape[0] != count or (self._rank == 3 and not values.shape[1]):
            raise ExecutionFailed(f"the graph returned '{self._output}' of shape {list(values.shape)}")
        values = values.astype(np.float32, copy=False)
        if self._rank == 2:
            return Features(values[:, None], mask, values, is_full=is_full)
        return Features(values, mask, is_full=is_full)


class Table:
    """A table with a vector for each token; a text's is the mean of these (``Encoder``).

    Args:
        directory: with its ``model.safetensors``.

    Raises:
        ModelLoadError: the file cannot be read.
    """

    pads = False
    on_cpu = True
    datatype = "float32"

    def __init__(self, directory: Path) -> None:
        self._vectors = read_weights(directory, ["embedding.weight"])["embedding.weight"]
        if self._vectors.ndim != 2:
            raise ModelLoadError(f"'{directory}': embedding.weight has not two dimensions")
        self.tokens = len(self._vectors)
        poison = current()
        self._allocate: Callable[..., Float32] = np.empty if poison is None else poison.filling(np.empty)

    def run(self, rows: Sequence[Row], length: int) -> Features:
        """See ``Encoder``. There are no vectors of tokens in what it returns."""
        vectors = self.sums([row.ids for row in rows])
        vectors /= np.array([row.length for row in rows], np.float32)[:, None]
        return Features(vectors[:, None], np.ones((len(rows), 1), np.int64), vectors, is_full=True)

    def sums(self, texts: Sequence[Ids]) -> Float32:
        """The sums of the vectors of the tokens of texts, [texts, dimensions].

        Args:
            texts: the ids of the tokens of each, of one at least.
        """
        take, add = self._vectors.take, np.add.reduce
        found = self._allocate((len(texts), self._vectors.shape[1]), np.float32)
        # One by one: ``reduceat`` over the tokens of all texts takes twice as long, and five times for long texts.
        for ids, own in zip(texts, found, strict=True):
            add(take(ids, 0), 0, out=own)
        return found


def _names(tensors: Sequence[Any]) -> str:
    return ", ".join(tensor.name for tensor in tensors[:20]) or "none"
