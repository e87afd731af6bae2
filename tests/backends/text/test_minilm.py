"""The vectors of all-MiniLM-L6-v2 are those of sentence-transformers, in any company; `make test` brings the model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.backends.text.serving import compute, served
from tests.minilm import REPOSITORY
from toutates.backends.text.interface import TextModel

pytestmark = pytest.mark.skipif(not REPOSITORY.exists(), reason="the model is brought by: python tests/minilm.py")

REFERENCE: Final = Path(__file__).parents[2] / "reference"
#: Cosine distance of two vectors at most.
MOST: Final = 1e-5


@pytest.fixture(scope="module")
def model() -> Iterator[TextModel]:
    with served(REPOSITORY / "minilm") as model:
        yield model


@pytest.fixture(scope="module")
def reference() -> tuple[list[str], Any, Any]:
    """Texts, their vectors, and how many tokens they have."""
    texts: list[str] = json.loads((REFERENCE / "minilm-texts.json").read_text())
    with np.load(REFERENCE / "minilm.npz") as file:
        return texts, file["vectors"], file["tokens"]


def distances(found: Sequence[Any], wanted: Any) -> Any:
    """Cosine distances of vectors, row by row."""
    vectors = np.stack(found)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted, axis=1)
    return 1 - (vectors * wanted).sum(axis=1) / lengths


def test_texts_in_one_crowd_have_their_vectors_and_little_is_padded(
    model: TextModel, reference: tuple[list[str], Any, Any]
) -> None:
    texts, vectors, tokens = reference
    order = list(range(len(texts)))
    random.Random(5).shuffle(order)
    order = order[::3]  # all of them take half a minute
    result = compute(model, [texts[at] for at in order])
    assert result.error is None
    assert list(result.tokens) == tokens[order].tolist()
    assert distances(result.vectors, vectors[order]).max() < MOST
    batches = model.statistics().batches.values()  # type: ignore[attr-defined]
    assert sum(one.real_elements for one in batches) == tokens[order].sum()
    assert sum(one.padded_elements for one in batches) <= 1.3 * tokens[order].sum()


def test_texts_alone_and_in_small_company_have_the_same_vectors(
    model: TextModel, reference: tuple[list[str], Any, Any]
) -> None:
    texts, vectors, tokens = reference
    short = [at for at in range(len(texts)) if tokens[at] < 30][:12]
    for at in short[:6]:
        assert distances(compute(model, [texts[at]]).vectors, vectors[[at]]).max() < MOST
    for first in range(0, 12, 3):
        own = short[first : first + 3]
        assert distances(compute(model, [texts[at] for at in own]).vectors, vectors[own]).max() < MOST
