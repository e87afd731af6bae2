"""The texts of the benchmark have the lengths that their distribution says, and are the same in every run."""

from __future__ import annotations

import pytest

pytest.importorskip("tritonclient.grpc")

from bench.text_load import DISTRIBUTIONS, some_texts


def test_texts_have_the_lengths_of_their_distribution() -> None:
    for name, shares in DISTRIBUTIONS.items():
        lengths = [len(text.split()) for text in some_texts(name, 300)]
        for share, least, most in shares:
            found = sum(least <= length <= most for length in lengths) / len(lengths)
            assert abs(found - share) < 0.1


def test_texts_are_the_same_for_the_same_seed() -> None:
    assert some_texts("mix", 20, 3) == some_texts("mix", 20, 3) != some_texts("mix", 20, 4)
