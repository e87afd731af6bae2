"""The tool that times the product's regular expressions finds them, and those that are too slow among them."""

from __future__ import annotations

import re

import pytest

from fuzz.patterns import Found, slowest, tree_patterns


@pytest.mark.long
def test_every_pattern_of_the_tree_is_timed() -> None:
    places = {found.place.partition(":")[0] for found in tree_patterns()}
    assert {"toutates/repositories/torchserve/importing.py", "toutates/http1/head.py"} <= places


@pytest.mark.parametrize(
    ("pattern", "way"),
    [
        (re.compile(r"^\s*(?:from|import)\s+(ts(?:\.\w+)+)", re.MULTILINE), "findall"),
        (re.compile(r"(a+)+b"), "match"),
        (re.compile(rb'(\w+)="'), "search"),
        (re.compile(r"<b>(.*?)</b>", re.DOTALL), "sub"),
    ],
)
def test_what_takes_longer_than_its_text_is_found(pattern: re.Pattern[str], way: str) -> None:
    found = slowest(Found("here:1", pattern, (way,)))
    assert found is not None
    assert found.is_too_slow, found
