from __future__ import annotations

import pytest

from toutates.system.text import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("größe  1", "größe  1"),
        ("a\nb\r\x1b[2J", "a\\nb\\r\\x1b[2J"),
        ("\u202e\u2028\ud800", "\\u202e\\u2028\\ud800"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_cannot_be_printed_is_escaped_and_all_else_is_as_it_was(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_text_is_cut_where_it_exceeds_its_limit_and_says_by_how_much() -> None:
    assert printable("x" * 80, 80) == "x" * 80
    assert printable("x" * 81, 80) == "x" * 80 + "... (1 more characters)"
    assert printable("\n" * 100, 2) == "\\n\\n... (98 more characters)"
    assert len(printable("x" * 1_000_000)) == 1_000_000


def test_sentences_of_several_lines_become_one() -> None:
    assert one_line(ValueError(" no\n\n  such\tfile\x00 ")) == "no such file\\x00"
    assert one_line("a  b  c", 3) == "a b... (2 more characters)"
