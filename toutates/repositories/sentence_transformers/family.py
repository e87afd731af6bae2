"""What is common to all families of encoders: the output that is wanted, and the heads that make scores and logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from toutates.repositories.sentence_transformers.graph import Value
from toutates.repositories.sentence_transformers.layers import Builder
from toutates.repositories.sentence_transformers.settings import Settings

__all__ = ["Family", "Head", "Output"]


class Output(Enum):
    """What a graph computes."""

    #: ``last_hidden_state`` [batch, length, hidden]
    HIDDEN = "hidden"
    #: ``logits`` [batch, labels], as cross-encoders and classifiers have them
    LABELS = "labels"
    #: ``logits`` [batch, length, vocabulary], as SPLADE has them
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Head:
    """Two linear layers: one of the hidden size, and one to labels or to the vocabulary.

    Attributes:
        dense: name of the first.
        out: name of the second.
        activation: between them.
        norm: name of a layer normalization behind the activation; "" for none.
        epsilon: of it.
        dense_bias, norm_bias: whether these have a bias.
        out_bias: name of the second layer's bias; "" for none.
    """

    dense: str
    out: str
    activation: str
    norm: str = ""
    epsilon: float = 0.0
    dense_bias: bool = True
    norm_bias: bool = True
    out_bias: str = ""


class Family(ABC):
    """An architecture: how a graph is made of its configuration and weights.

    Args:
        builder: the graph and what it is made from.

    Attributes:
        prefix: with which the names of the encoder's own weights begin in models that have a head.
        passed_over: regular expressions of weights that are in the files and not needed.
        heads_of_others: those of heads, which are not needed for the vectors of tokens.
        settings_of_heads: settings that only some outputs need.
        words: name of the table of tokens' vectors.
        hidden_size: of a token's vector.
    """

    prefix: ClassVar[str]
    passed_over: ClassVar[tuple[str, ...]]
    heads_of_others: ClassVar[tuple[str, ...]]
    settings_of_heads: ClassVar[tuple[str, ...]] = ("tie_word_embeddings",)
    words: ClassVar[str]
    hidden_size: int

    def __init__(self, builder: Builder) -> None:
        self.builder, self.graph, self.settings = builder, builder.graph, builder.settings
        self.vocabulary = self.settings.integer("vocab_size")

    @abstractmethod
    def encode(self) -> Value:
        """The vectors of the tokens, [batch, length, hidden_size]."""

    @abstractmethod
    def label_head(self) -> Head:
        """The head of sequence classification."""

    @abstractmethod
    def token_head(self) -> Head:
        """The head of masked language models."""

    def pooled(self, hidden: Value) -> Value:
        """What the head of sequence classification reads, [batch, hidden_size]."""
        return self.builder.first(hidden)

    def write(self, output: Output) -> None:
        """Put everything into the graph, up to its output.

        Raises:
            ConfigurationError: a setting or a weight cannot be used, or there are some that are not known.
        """
        builder = self.builder
        hidden = self.encode()
        if output is Output.HIDDEN:
            self.graph.output("last_hidden_state", hidden, ("batch", "length", self.hidden_size))
        elif output is Output.LABELS:
            count = _labels(self.settings)
            head = self.label_head()
            logits = builder.linear(self._inner(self.pooled(hidden), head), head.out, self.hidden_size, count)
            self.graph.output("logits", logits, ("batch", count))
        else:
            head = self.token_head()
            tied = self.settings.flag("tie_word_embeddings", True)
            matrix = self.words if tied else f"{head.out}.weight"
            logits = builder.product(self._inner(hidden, head), matrix, self.hidden_size, self.vocabulary)
            if head.out_bias:
                # The two names are of the same weights.
                bias = head.out_bias if head.out_bias in builder.weights else f"{head.out}.bias"
                logits = self.graph.add("Add", logits, builder.weight(bias, self.vocabulary))
            self.graph.output("logits", logits, ("batch", "length", self.vocabulary))
        for key in self.settings_of_heads:
            self.settings.value(key)
        self.settings.require_all_known()
        others = self.heads_of_others if output is Output.HIDDEN else ()
        builder.weights.require_all_used((*self.passed_over, *others))

    def _inner(self, value: Value, head: Head) -> Value:
        builder, size = self.builder, self.hidden_size
        value = builder.linear(value, head.dense, size, size, bias=head.dense_bias)
        value = builder.activation(value, head.activation)
        return builder.norm(value, head.norm, size, head.epsilon, bias=head.norm_bias) if head.norm else value


def _labels(settings: Settings) -> int:
    """How many labels a model has; transformers has two where neither setting is there."""
    names = settings.value("id2label")
    if isinstance(names, Mapping) and names:
        return len(names)
    return settings.integer("num_labels", 2)
