"""Ensembles as config.pbtxt has them."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from toutates.backends.ensemble.graph import Graph, read_graph
from toutates.backends.ensemble.servable import EnsembleServable
from toutates.backends.ensemble.state import Bounds
from toutates.protocol.model_config_pb2 import ModelConfig

__all__ = ["config_of", "ensemble_of", "graph_of"]


def config_of(pbtxt: str) -> ModelConfig:
    """A configuration by its text."""
    return text_format.Parse(pbtxt, ModelConfig())


def graph_of(pbtxt: str, name: str = "e") -> Graph:
    """The steps of an ensemble.

    Args:
        pbtxt: its configuration.
        name: the ensemble's.
    """
    return read_graph(config_of(pbtxt), name, Path("config.pbtxt"))


def ensemble_of(pbtxt: str, *, rows: int = 64, memory_bytes: int = 2**20, name: str = "e") -> EnsembleServable:
    """An ensemble that is not bound to its members yet.

    Args:
        pbtxt: its configuration.
        rows, memory_bytes: that may be under way.
        name: the ensemble's.
    """
    config = config_of(pbtxt)
    return EnsembleServable(read_graph(config, name, Path("config.pbtxt")), Bounds(rows, memory_bytes), config)
