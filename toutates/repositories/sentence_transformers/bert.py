"""BERT, RoBERTa, DistilBERT and MPNet: normalization behind each part of a layer, positions by a table.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018; Liu et al.,
"RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019; Sanh et al., "DistilBERT, a distilled version of BERT",
2019; Song et al., "MPNet: Masked and Permuted Pre-training for Language Understanding", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from toutates.repositories.sentence_transformers.family import Family, Head
from toutates.repositories.sentence_transformers.graph import Array, Value
from toutates.repositories.sentence_transformers.layers import ACTIVATIONS, Builder

__all__ = ["Bert", "DistilBert", "MPNet", "Roberta"]

#: The farthest tokens that MPNet tells apart.
_MOST_DISTANCE: Final = 128
_BUCKETS: Final = 32


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the weights of a layer, behind its prefix.

    Attributes:
        layer: the prefix, with its number to be filled in.
        query, key, value, out: the linear layers of attention.
        attention_norm: behind attention.
        up, down: the linear layers of the feed-forward part.
        norm: behind it.
    """

    layer: str = ".encoder.layer.{}."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norm: str = "output.LayerNorm"


class Bert(Family):
    """BERT: absolute positions, and a segment of each token."""

    prefix = "bert."
    passed_over: ClassVar[tuple[str, ...]] = (
        r"(.*\.)?embeddings\.(position|token_type)_ids",
        r"(.*\.)?pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"(cls\.predictions|lm_head)\.decoder\.(weight|bias)",
    )
    heads_of_others: ClassVar[tuple[str, ...]] = (r"(cls|classifier|lm_head|qa_outputs)\..*",)
    words = ".embeddings.word_embeddings.weight"
    names = _Names()

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        settings = self.settings
        self.hidden_size = settings.integer("hidden_size")
        self.layers = settings.integer("num_hidden_layers")
        self.heads = settings.integer("num_attention_heads")
        self.inner_size = settings.integer("intermediate_size")
        self.kind = settings.text("hidden_act", "gelu", ACTIVATIONS)
        self.epsilon = settings.number("layer_norm_eps", 1e-12)
        self._common()

    def _common(self) -> None:
        settings = self.settings
        self.positions = settings.integer("max_position_embeddings")
        settings.text("position_embedding_type", "absolute", ("absolute",))
        self.padding = settings.integer("pad_token_id", self.default_padding, 0)
        if self.hidden_size % self.heads:
            raise settings.refused(
                "num_attention_heads", f"does not divide the hidden size {self.hidden_size}", "mend the file"
            )

    #: The id of padding where config.json does not say.
    default_padding: ClassVar[int] = 0

    def encode(self) -> Value:
        """See ``Family``."""
        ids = self.graph.input("input_ids")
        mask = self.builder.mask()
        hidden = self.embed(ids)
        scores = self.scores(ids)
        for number in range(self.layers):
            hidden = self._layer(self.names.layer.format(number), hidden, mask, scores)
        return hidden

    def embed(self, ids: Value) -> Value:
        """The vectors that the first layer reads."""
        builder, size = self.builder, self.hidden_size
        words = self.graph.add("Gather", builder.weight(self.words, self.vocabulary, size), ids)
        places = self.place(ids)
        kinds = self.segments()
        if kinds:
            places = self.graph.add("Add", places, kinds)
        return builder.norm_of_sum((words, places), ".embeddings.LayerNorm", size, self.epsilon)

    def place(self, ids: Value) -> Value:
        """The vectors of the positions: [batch, length, hidden], or [1, length, hidden] where they are 0, 1, 2 ..."""
        graph, builder = self.graph, self.builder
        table = builder.weight(".embeddings.position_embeddings.weight", self.positions, self.hidden_size)
        zero = graph.constant([0])
        return graph.add("Unsqueeze", graph.add("Slice", table, zero, builder.length(ids), zero), zero)

    def segment_count(self) -> int:
        """How many kinds of segments there are; 0 for none at all."""
        return self.settings.integer("type_vocab_size", 2)

    def segments(self) -> Value:
        """The vectors of the tokens' segments, [batch, length, hidden], or the only one, [1, hidden]; "" for none."""
        count = self.segment_count()
        if count == 0:
            return ""
        table = self.builder.weight(".embeddings.token_type_embeddings.weight", count, self.hidden_size)
        if count == 1:
            return table
        return self.graph.add("Gather", table, self.graph.input("token_type_ids"))

    def scores(self, ids: Value) -> Value:
        """What is added to the scores of attention; "" for nothing."""
        return ""

    def _layer(self, layer: str, hidden: Value, mask: Value, scores: Value) -> Value:
        builder, names, size = self.builder, self.names, self.hidden_size
        triple = (names.query, names.key, names.value)
        parts = [builder.product(hidden, f"{layer}{name}.weight", size, size) for name in triple]
        bias = builder.joined([f"{layer}{name}.bias" for name in triple], size)
        seen = builder.attention(parts, self.heads, mask, bias=bias, scores=scores)
        seen = builder.product(seen, f"{layer}{names.out}.weight", size, size)
        hidden = builder.norm_of_sum(
            (seen, hidden), layer + names.attention_norm, size, self.epsilon, third=f"{layer}{names.out}.bias"
        )
        inner = builder.product(hidden, f"{layer}{names.up}.weight", size, self.inner_size)
        inner = builder.activation_of_sum(inner, f"{layer}{names.up}.bias", self.inner_size, self.kind)
        inner = builder.product(inner, f"{layer}{names.down}.weight", self.inner_size, size)
        return builder.norm_of_sum(
            (inner, hidden), layer + names.norm, size, self.epsilon, third=f"{layer}{names.down}.bias"
        )

    def label_head(self) -> Head:
        """See ``Family``. The first layer is BERT's pooler."""
        return Head(".pooler.dense", "classifier", "tanh")

    def token_head(self) -> Head:
        """See ``Family``."""
        transform = "cls.predictions.transform"
        return Head(
            f"{transform}.dense",
            "cls.predictions.decoder",
            self.kind,
            f"{transform}.LayerNorm",
            self.epsilon,
            out_bias="cls.predictions.bias",
        )


class Roberta(Bert):
    """RoBERTa, XLM-RoBERTa and CamemBERT: positions are counted from the id of padding on, and leave padding out."""

    prefix = "roberta."
    default_padding = 1

    def place(self, ids: Value) -> Value:
        """The vectors of the positions; padding has that of its own id."""
        graph = self.graph
        table = self.builder.weight(".embeddings.position_embeddings.weight", self.positions, self.hidden_size)
        padding = graph.constant(self.padding)
        real = graph.add("Cast", graph.add("Not", graph.add("Equal", ids, padding)), to=_INT64)
        counted = graph.add("Mul", graph.add("CumSum", real, graph.constant(1)), real)
        return graph.add("Gather", table, graph.add("Add", counted, padding))

    def label_head(self) -> Head:
        """See ``Family``."""
        return Head("classifier.dense", "classifier.out_proj", "tanh")

    def token_head(self) -> Head:
        """See ``Family``. The activation is GELU whatever the layers have."""
        return Head(
            "lm_head.dense", "lm_head.decoder", "gelu", "lm_head.layer_norm", self.epsilon, out_bias="lm_head.bias"
        )


class MPNet(Roberta):
    """MPNet: RoBERTa's positions without segments, and a bias of the scores by the distance of two tokens."""

    prefix = "mpnet."
    names = _Names(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        out="attention.attn.o",
        attention_norm="attention.LayerNorm",
    )

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.settings.integer("relative_attention_num_buckets", _BUCKETS, _BUCKETS, _BUCKETS)
        if self.padding != 1:
            raise self.settings.refused("pad_token_id", "is not 1, from which MPNet counts positions", "mend the file")

    def segment_count(self) -> int:
        """See ``Bert``."""
        return 0

    def scores(self, ids: Value) -> Value:
        """One value for each head and distance, looked up for each pair of positions: [1, heads, length, length]."""
        graph, builder = self.graph, self.builder
        most = self.positions - 1
        tensor = builder.weights.take(".encoder.relative_attention_bias.weight", (_BUCKETS, self.heads))
        buckets = [_bucket(distance) for distance in range(-most, most + 1)]

        def make() -> Array:
            return np.ascontiguousarray(tensor.float32()[buckets].T)

        table = graph.weight(f"{tensor.name}[distance]", (self.heads, 2 * most + 1), make)
        length = graph.add("Squeeze", builder.length(ids))
        positions = graph.add("Range", graph.constant(0), length, graph.constant(1))
        rows = graph.add("Unsqueeze", positions, graph.constant([1]))
        distances = graph.add("Sub", graph.add("Add", positions, graph.constant(most)), rows)
        return graph.add("Unsqueeze", graph.add("Gather", table, distances, axis=1), graph.constant([0]))


class DistilBert(Bert):
    """DistilBERT: BERT without segments, with names of its own."""

    prefix = "distilbert."
    passed_over = (*Bert.passed_over, r"vocab_projector\.weight")
    heads_of_others = (r"((pre_)?classifier|vocab_(transform|layer_norm|projector)|qa_outputs)\..*",)
    names = _Names(
        layer=".transformer.layer.{}.",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        out="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        norm="output_layer_norm",
    )

    def __init__(self, builder: Builder) -> None:
        Family.__init__(self, builder)
        settings = self.settings
        self.hidden_size = settings.integer("dim")
        self.layers = settings.integer("n_layers")
        self.heads = settings.integer("n_heads")
        self.inner_size = settings.integer("hidden_dim")
        self.kind = settings.text("activation", "gelu", ACTIVATIONS)
        self.epsilon = 1e-12
        self._common()

    def segment_count(self) -> int:
        """See ``Bert``."""
        return 0

    def label_head(self) -> Head:
        """See ``Family``."""
        return Head("pre_classifier", "classifier", "relu")

    def token_head(self) -> Head:
        """See ``Family``."""
        return Head(
            "vocab_transform",
            "vocab_projector",
            self.kind,
            "vocab_layer_norm",
            self.epsilon,
            out_bias="vocab_projector.bias",
        )


def _bucket(distance: int) -> int:
    """The row of MPNet's table for a key that is ``distance`` behind its query.

    Half of the rows are for keys behind the query, half for keys before it; the near distances have a row each, farther
    ones share rows by their logarithm.
    """
    half = _BUCKETS // 2
    near = half // 2
    row = half if distance > 0 else 0
    far = abs(distance)
    if far < near:
        return row + far
    # In float32, as the model was trained: a distance on the border of two rows falls on the same side.
    scaled = np.log(np.float32(far) / np.float32(near)) / np.float32(math.log(_MOST_DISTANCE / near))
    return row + min(half - 1, near + int(scaled * np.float32(half - near)))


#: TensorProto.INT64.
_INT64: Final = 7
