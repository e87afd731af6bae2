"""Running a graph that has been written: that it computes anything, and what quantizing it loses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.repositories.sentence_transformers.family import Output
from toutates.repositories.sentence_transformers.folder import TOKENIZER, ModelFolder
from toutates.repositories.sentence_transformers.samples import SAMPLES
from toutates.system.errors import ConfigurationError
from toutates.system.text import one_line

__all__ = ["Loss", "Results", "loss_of", "quantize", "results_of"]

#: Tokens that are read of a sample.
_MOST_TOKENS: Final = 128
#: Elements from which on a table is worth being quantized.
_LARGE: Final = 2**20
_TINY: Final = 1e-12

#: What a model makes of each sample: vectors, scores, or weights of the vocabulary, [samples, n].
Results = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Loss:
    """How far the results of a quantized model are from those of the model in float32.

    Attributes:
        what: is measured.
        texts: how many samples there were.
        mean, worst: over the samples.
    """

    what: str
    texts: int
    mean: float
    worst: float

    def __str__(self) -> str:
        return f"{self.what}: {self.mean:.4f} on average, {self.worst:.4f} at worst, of {self.texts} samples"


def results_of(graph: Path, folder: ModelFolder) -> Results:
    """Compute the samples, one at a time.

    Args:
        graph: the file of the model.
        folder: with its tokenizer.

    Raises:
        ConfigurationError: the graph cannot be run, or computes what is no number.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    encoder = folder.path / folder.encoder
    try:
        tokenizer: Any = Tokenizer.from_file(str(encoder / TOKENIZER))
    except Exception as error:  # the package raises no class of its own
        problem = f"cannot be read: {one_line(error, 300)}"
        raise ConfigurationError(problem, source=encoder / TOKENIZER, remedy="download or save it again") from error
    tokenizer.no_padding()
    positions = folder.config.get("max_position_embeddings")
    # Half of the positions, because some architectures do not count them from 0.
    tokenizer.enable_truncation(min(_MOST_TOKENS, positions // 2) if type(positions) is int else _MOST_TOKENS)
    try:
        session: Any = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        results = [_result(session, tokenizer, folder, number) for number in range(len(SAMPLES))]
    except Exception as error:  # ONNX Runtime has a dozen classes of errors
        problem = f"ONNX Runtime cannot run the graph: {one_line(error, 500)}"
        remedy = "see that config.json, the tokenizer and the weights are of the same model"
        raise ConfigurationError(problem, source=folder.path, remedy=remedy) from error
    found = np.stack(results)
    if not np.isfinite(found).all():
        raise ConfigurationError(
            "the model computes values that are no numbers", source=folder.path, remedy="see that the weights are whole"
        )
    return found


def _result(session: Any, tokenizer: Any, folder: ModelFolder, number: int) -> Results:
    text = SAMPLES[number]
    pair = (SAMPLES[(number + 1) % len(SAMPLES)],) if folder.output is Output.LABELS else ()
    encoded = tokenizer.encode(text, *pair)
    fed = {
        "input_ids": encoded.ids,
        "attention_mask": [1] * len(encoded.ids),
        "token_type_ids": encoded.type_ids,
    }
    names = [one.name for one in session.get_inputs()]
    computed = session.run(None, {name: np.array([fed[name]], np.int64) for name in names})[0]
    result: Any = computed[0]
    if folder.output is Output.LABELS:
        scores = np.exp(result - result.max() if len(result) > 1 else -result)
        result = scores / scores.sum() if len(result) > 1 else 1 / (1 + scores)
    elif folder.output is Output.TOKENS:
        result = np.log1p(np.maximum(result, 0)).max(axis=0)
    else:
        result = result[0] if folder.takes_first else result.mean(axis=0)
    return np.asarray(result, np.float32)


def loss_of(folder: ModelFolder, exact: Results, quantized: Results) -> Loss:
    """What quantizing has lost.

    Args:
        exact: of the model in float32.
        quantized: of the other.
    """
    if folder.output is Output.LABELS:
        differences = np.abs(exact - quantized).max(axis=1)
        return _loss("difference of a score", differences)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(quantized, axis=1)
    products = (exact * quantized).sum(axis=1)
    return _loss("cosine distance", 1 - (products + _TINY) / (lengths + _TINY))


def _loss(what: str, values: npt.NDArray[Any]) -> Loss:
    return Loss(what, len(values), float(max(0.0, values.mean())), float(max(0.0, values.max())))


def quantize(source: Path, target: Path) -> None:
    """Write a graph whose large weights are of 8 bits, each column with a scale of its own.

    Weights have 7 of the 8 bits, because processors without VNNI instructions add products of 8 bits in 16, which
    would overflow. What they are multiplied by is quantized at each run. Of tables, the large ones alone are quantized:
    the others take no room.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source, load_external_data=False)
    large = {one.name for one in model.graph.initializer if int(np.prod(one.dims)) >= _LARGE}
    small = [node.name for node in model.graph.node if node.op_type == "Gather" and node.input[0] not in large]
    is_split = any(one.external_data for one in model.graph.initializer)
    with _without_warnings():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=small,
            use_external_data_format=is_split,
            # ONNX's inference of shapes does not know ONNX Runtime's own operators.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep ONNX Runtime's quantizer from logging advice about other kinds of models."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
