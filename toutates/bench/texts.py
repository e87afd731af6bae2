"""Texts of requests for embeddings: words by chance, or the lines of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.data import RANDOM, ZEROS, DataSettings

__all__ = ["make_texts"]

_WORDS: Final = [
    "a",
    "an",
    "and",
    "the",
    "of",
    "to",
    "in",
    "on",
    "at",
    "by",
    "for",
    "with",
    "from",
    "into",
    "about",
    "over",
    "under",
    "between",
    "time",
    "year",
    "way",
    "day",
    "thing",
    "world",
    "life",
    "hand",
    "part",
    "place",
    "week",
    "case",
    "point",
    "company",
    "number",
    "group",
    "problem",
    "fact",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
    "car",
    "city",
    "name",
    "team",
    "minute",
    "idea",
    "body",
    "back",
    "parent",
    "face",
    "level",
    "office",
    "door",
    "health",
    "person",
    "art",
    "war",
    "history",
]
#: Characters of a text by chance, where nothing is said.
_LENGTH: Final = 120
_MOST_TEXTS: Final = 4_096


def make_texts(settings: DataSettings, rng: np.random.Generator) -> list[list[str]]:
    """The texts of different requests, ``batch`` of each.

    Args:
        settings: source is RANDOM, ZEROS (empty texts), or a file of a text in each line, or of JSON lines with a
            member "text" or "input".
        rng: of chance.

    Raises:
        Refused: the file cannot be read.
    """
    batch = settings.batch or 1
    if settings.source == ZEROS or settings.string is not None:
        return [[settings.string or ""] * batch]
    if settings.source == RANDOM:
        return [
            [_words(settings.string_length or _LENGTH, rng) for _ in range(batch)] for _ in range(settings.different)
        ]
    path = Path(settings.source)
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        texts = [_text(line) for line in lines] if path.suffix in (".jsonl", ".json") else lines
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f'{path}: expected lines of text, or of JSON objects with a member "text"') from None
    if not texts:
        raise Refused(f"{path}: it holds no texts")
    texts = texts[:_MOST_TEXTS]
    return [[texts[(start + step) % len(texts)] for step in range(batch)] for start in range(0, len(texts), batch)]


def _text(line: str) -> str:
    document = json.loads(line)
    return str(document["text"] if "text" in document else document["input"])


def _words(length: int, rng: np.random.Generator) -> str:
    text = ""
    while len(text) < length:
        text += f"{_WORDS[int(rng.integers(len(_WORDS)))]} "
    return text[:length].strip() or "a"
