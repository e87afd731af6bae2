"""Requests of different length, for models that are asked so: texts, and rows that are padded.

They are a file of perf_analyzer's form, with a row in each entry. Lengths are by chance between two bounds, as many
to each doubling: few texts are as long as they may be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.data import DataSettings
from toutates.bench.metadata import ModelFacts, TensorFacts
from toutates.bench.texts import make_texts
from toutates.protocol.datatypes import BY_NAME

__all__ = ["TEXT_LENGTHS", "TOKEN_LENGTHS", "Lengths", "read_lengths", "write_rows", "write_texts"]

_ENTRIES: Final = 64
_MOST_INTEGER: Final = 100
#: Inputs of text encoders that are no ids: all their elements are this.
_USUAL: Final = {"attention_mask": 1, "token_type_ids": 0}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Between which lengths lie, both included: characters of a text, or elements of a row."""

    shortest: int
    longest: int

    def some(self, rng: np.random.Generator) -> list[int]:
        """Lengths by chance."""
        bounds = math.log(self.shortest), math.log(self.longest + 1)
        return [min(self.longest, int(math.exp(one))) for one in rng.uniform(*bounds, _ENTRIES)]


TEXT_LENGTHS: Final = Lengths(20, 400)
TOKEN_LENGTHS: Final = Lengths(8, 128)


def read_lengths(text: str) -> Lengths:
    """Read MIN:MAX.

    Raises:
        ValueError: it is something else.
    """
    try:
        shortest, longest = map(int, text.split(":"))
    except ValueError:
        raise ValueError("expected two numbers such as 8:128") from None
    if not 0 < shortest <= longest:
        raise ValueError("expected two numbers above 0 such as 8:128, the smaller one first")
    return Lengths(shortest, longest)


def write_texts(path: Path, facts: ModelFacts, lengths: Lengths, rng: np.random.Generator) -> None:
    """Write entries of texts, the same one for each input.

    Raises:
        Refused: the model has an input that is no text.
    """
    if any(one.datatype != "BYTES" for one in facts.inputs):
        raise Refused(f"model '{facts.name}' has an input that is no text; name a file by --data")
    entries = []
    for length in lengths.some(rng):
        (text,) = make_texts(DataSettings(string_length=length, different=1), rng)[0]
        entries.append({one.name: [text] for one in facts.inputs})
    path.write_text(json.dumps({"data": entries}), encoding="utf-8")


def write_rows(
    path: Path, facts: ModelFacts, padding: Mapping[str, Any], lengths: Lengths, rng: np.random.Generator
) -> None:
    """Write entries of rows.

    Args:
        path: the file.
        facts: of the model.
        padding: of its configuration.
        lengths: of rows.
        rng: of chance.

    Raises:
        Refused: an input cannot be made.
    """
    axes = {name: int((told or {}).get("axis", 1)) for name, told in (padding.get("inputs") or {}).items()}
    mask = padding.get("mask") or ""
    entries = []
    for length in lengths.some(rng):
        entry = {}
        for one in facts.inputs:
            if one.datatype not in BY_NAME or one.datatype == "BYTES":
                raise Refused(f"input '{one.name}' of type {one.datatype} cannot be made; name a file by --data")
            shape = [max(axis, 1) for axis in one.shape[1:]]
            if one.name == mask:
                shape = [length if axis < 0 else axis for axis in one.shape[1:]]
            elif one.name in axes:
                shape[axes[one.name] - 1] = length
            usual = 1 if one.name == mask else _USUAL.get(one.name)
            count = math.prod(shape)
            values = _values(one, count, rng) if usual is None else [usual] * count
            entry[one.name] = {"content": values, "shape": shape}
        entries.append(entry)
    path.write_text(json.dumps({"data": entries}), encoding="utf-8")


def _values(one: TensorFacts, count: int, rng: np.random.Generator) -> list[Any]:
    kind = BY_NAME[one.datatype].numpy.kind
    if kind == "f":
        return [float(value) for value in rng.standard_normal(count)]
    return [int(value) for value in rng.integers(0, 2 if kind == "b" else _MOST_INTEGER, count)]
