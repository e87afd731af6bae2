"""Converting the model of a folder: which architecture it is, and its graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from toutates.repositories.sentence_transformers.bert import Bert, DistilBert, MPNet, Roberta
from toutates.repositories.sentence_transformers.family import Family, Output
from toutates.repositories.sentence_transformers.graph import Graph
from toutates.repositories.sentence_transformers.layers import Builder
from toutates.repositories.sentence_transformers.modernbert import ModernBert
from toutates.repositories.sentence_transformers.settings import Settings
from toutates.repositories.sentence_transformers.weights import open_weights

__all__ = ["FAMILIES", "make_graph"]

#: By ``model_type`` of config.json.
FAMILIES: Final[Mapping[str, type[Family]]] = MappingProxyType(
    {
        "bert": Bert,
        "camembert": Roberta,
        "distilbert": DistilBert,
        "modernbert": ModernBert,
        "mpnet": MPNet,
        "roberta": Roberta,
        "xlm-roberta": Roberta,
    }
)


def make_graph(folder: Path, config: Mapping[str, Any], output: Output, ignored: Collection[str] = ()) -> Graph:
    """The graph of a model, ready to be written. Its weights are read when it is.

    Args:
        folder: with the weights.
        config: its config.json, whose ``model_type`` is one of ``FAMILIES``.
        output: what the graph computes.
        ignored: settings that the operator says change nothing.

    Raises:
        ConfigurationError: a setting or the weights cannot be used.
    """
    settings = Settings(folder / "config.json", config, ignored)
    family = FAMILIES[config["model_type"]]
    weights = open_weights(folder)
    weights.prefix = family.prefix if family.prefix + family.words[1:] in weights else ""
    builder = Builder(settings, weights)
    family(builder).write(output)
    return builder.graph
