"""What follows the encoder: pooling, Dense, LayerNorm and normalisation, in NumPy over a whole batch.

A step takes the ``Features`` of a batch and changes them. The definitions are those of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from toutates.backends.text.interface import Float32

__all__ = [
    "ACTIVATIONS",
    "POOLING_MODES",
    "TOKENS",
    "VECTORS",
    "Activation",
    "Dense",
    "Features",
    "LayerNorm",
    "Normalize",
    "Pooling",
    "SparsePooling",
    "Step",
    "normalized",
    "sigmoid",
    "softmax",
]

#: Names of what a step reads or writes.
TOKENS: Final = "token_embeddings"
VECTORS: Final = "sentence_embedding"

Activation = Callable[[Float32], Float32]


@dataclass(slots=True)
class Features:
    """What is known of the texts of a batch.

    Attributes:
        tokens: float32 [texts, length, dimensions], a vector for each token; for sparse models its logits.
        mask: [texts, length], 1 where a text has a token.
        vectors: float32 [texts, dimensions]; None until something makes them.
        prompts: int [texts], how many of a text's first tokens are a prompt's; None where nobody asks.
        is_full: whether no text has padding.
    """

    tokens: Float32
    mask: npt.NDArray[np.int64]
    vectors: Float32 | None = None
    prompts: npt.NDArray[np.int64] | None = None
    is_full: bool = False

    def read(self, name: str) -> Float32:
        """The tensor of a name."""
        if name == TOKENS:
            return self.tokens
        assert self.vectors is not None
        return self.vectors

    def write(self, name: str, values: Float32) -> None:
        """Replace the tensor of a name."""
        if name == TOKENS:
            self.tokens = values
        else:
            self.vectors = values


class Step(Protocol):
    """One module of a model, after the encoder."""

    def run(self, features: Features) -> None:
        """Change the features of a batch."""
        ...


def normalized(vectors: Float32) -> Float32:
    """Vectors of length 1 along the last dimension; zeros stay zeros."""
    if vectors.size == vectors.shape[-1]:  # one, of which a number is enough: 2 us in place of 8
        alone = vectors.ravel()
        own: Float32 = vectors / max(sqrt(alone.dot(alone)), 1e-12)
        return own
    lengths = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    result: Float32 = vectors / np.maximum(lengths, np.float32(1e-12))
    return result


def sigmoid(values: Float32) -> Float32:
    """1 / (1 + exp(-x)), without an overflow."""
    small = np.exp(-np.abs(values))
    result: Float32 = np.where(values >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
    return result


def softmax(values: Float32) -> Float32:
    """Softmax along the last dimension."""
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    result: Float32 = powers / powers.sum(axis=-1, keepdims=True)
    return result


def _identity(values: Float32) -> Float32:
    return values


def _relu(values: Float32) -> Float32:
    return np.maximum(values, np.float32(0))


def _silu(values: Float32) -> Float32:
    result: Float32 = values * sigmoid(values)
    return result


#: Of PyTorch, by the last component of their dotted names.
ACTIVATIONS: Final[Mapping[str, Activation]] = MappingProxyType(
    {
        "Identity": _identity,
        "Tanh": np.tanh,
        "Sigmoid": sigmoid,
        "ReLU": _relu,
        "SiLU": _silu,
        "Softmax": softmax,
    }
)

# --- pooling ---------------------------------------------------------------------------------------------------------


def _rows(features: Features, mask: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> Float32:
    return features.tokens[np.arange(len(at)), at]


def _first(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    return _rows(features, mask, mask.argmax(axis=1))


def _last(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    found = mask.max(axis=1) > 0
    at = np.where(found, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1), 0)
    result: Float32 = _rows(features, mask, at) * found[:, None].astype(np.float32)
    return result


def _max(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    if mask.all():
        highest: Float32 = features.tokens.max(axis=1)
        return highest
    masked: Float32 = np.where(mask[:, :, None] != 0, features.tokens, np.float32(-np.inf)).max(axis=1)
    return masked


def _sum(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    if features.is_full and features.prompts is None:
        whole: Float32 = features.tokens.sum(axis=1)
        return whole
    # Padding behind the longest text's end is no row's; and a sum of products needs no array of all products.
    weights = mask.astype(np.float32)
    result: Float32 = np.einsum("bl,bld->bd", weights, features.tokens)
    return result


def _count(mask: npt.NDArray[np.int64]) -> Float32:
    result: Float32 = np.maximum(mask.sum(axis=1, keepdims=True).astype(np.float32), np.float32(1e-9))
    return result


def _mean(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    result: Float32 = _sum(features, mask) / _count(mask)
    return result


def _mean_sqrt(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    root: Float32 = np.sqrt(_count(mask))
    return _sum(features, mask) / root


def _weighted(features: Features, mask: npt.NDArray[np.int64]) -> Float32:
    # Positions count from the first token of a text, whether or not a prompt is left out.
    positions = np.cumsum(features.mask, axis=1)
    weights = (mask * positions).astype(np.float32)
    total = np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1e-9))
    result: Float32 = np.einsum("bl,bld->bd", weights, features.tokens) / total
    return result


#: By the names of sentence-transformers, in the order of its older files.
POOLING_MODES: Final[Mapping[str, Callable[[Features, npt.NDArray[np.int64]], Float32]]] = MappingProxyType(
    {
        "cls": _first,
        "max": _max,
        "mean": _mean,
        "mean_sqrt_len_tokens": _mean_sqrt,
        "weightedmean": _weighted,
        "lasttoken": _last,
    }
)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Makes one vector of the vectors of a text's tokens.

    Attributes:
        modes: of ``POOLING_MODES``; the results of several stand one after the other.
        with_prompt: whether a prompt's tokens count.
    """

    modes: tuple[str, ...]
    with_prompt: bool = True

    def run(self, features: Features) -> None:
        """See ``Step``."""
        mask = features.mask
        if self.with_prompt:
            features.prompts = None
        elif features.prompts is not None:
            mask = mask * (np.cumsum(mask, axis=1) > features.prompts[:, None])
        parts = [POOLING_MODES[mode](features, mask) for mode in self.modes]
        features.vectors = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True)
class SparsePooling:
    """Makes weights of the vocabulary's tokens of the logits of a text's tokens: log(1 + relu(logit)).

    Attributes:
        mode: ``max`` or ``sum`` over the tokens.
        twice: whether the logarithm is taken twice.
    """

    mode: str = "max"
    twice: bool = False

    def run(self, features: Features) -> None:
        """See ``Step``."""
        if self.mode == "max":
            # It grows with the logit, so the greatest logit's is the greatest.
            masked = features.tokens if features.is_full else np.where(features.mask[:, :, None], features.tokens, 0)
            features.vectors = self._weights(masked.max(axis=1))
        else:
            weights = self._weights(features.tokens) * features.mask[:, :, None].astype(np.float32)
            features.vectors = weights.sum(axis=1)

    def _weights(self, logits: Float32) -> Float32:
        weights: Float32 = np.log1p(_relu(logits))
        return np.log1p(weights) if self.twice else weights


# --- layers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A linear layer and its activation.

    Attributes:
        weight: float32 [in, out].
        bias: float32 [out]; None for none.
        activation: what follows.
        source, target: what it reads and writes.
        residual: float32 [in, out], what the input is multiplied by before it is added to the output; None where
            nothing is added.
        adds_input: whether the input itself is added to the output.
    """

    weight: Float32
    bias: Float32 | None
    activation: Activation
    source: str = VECTORS
    target: str = VECTORS
    residual: Float32 | None = None
    adds_input: bool = False

    def run(self, features: Features) -> None:
        """See ``Step``."""
        values = features.read(self.source)
        result: Float32 = values @ self.weight
        if self.bias is not None:
            result = result + self.bias
        result = self.activation(result)
        if self.residual is not None:
            result = result + values @ self.residual
        elif self.adds_input:
            result = result + values
        features.write(self.target, result)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    """Layer normalisation of the pooled vectors.

    Attributes:
        weight, bias: float32 [dimensions].
    """

    weight: Float32
    bias: Float32

    def run(self, features: Features) -> None:
        """See ``Step``."""
        values = features.read(VECTORS)
        centred = values - values.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(1e-5))
        features.vectors = centred / deviation * self.weight + self.bias


@dataclass(frozen=True, slots=True)
class Normalize:
    """Vectors of length 1.

    Attributes:
        source: which ones.
    """

    source: str = VECTORS

    def run(self, features: Features) -> None:
        """See ``Step``."""
        features.write(self.source, normalized(features.read(self.source)))
