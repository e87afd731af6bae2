"""Notes beside the tables of docs/measurements.md, which no report writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.notes import ABOVE, BELOW, END, notes_of, with_notes
from bench.page import between
from bench.report import BEGIN, report_command
from bench.report import END as PAGE_END
from tests.bench.support import some_results

HOW = f"{ABOVE}\n\nHow it is measured:\n\n### with a heading\n\n{END}"
SAYS = f"{BELOW}\n\nWhat it says.\n\n{END}"
PLAIN = "## Measured\n\nA machine.\n\n### First\n\n| old |\n\n### Second\n\n| table |\n\nEvery figure.\n"


def noted(table: str) -> str:
    return PLAIN.replace("| old |", f"{HOW}\n\n| {table} |\n\n{SAYS}")


def test_notes_stay_under_their_heading_when_all_else_is_new() -> None:
    notes = notes_of(noted("old"))
    assert notes == {"### First": (HOW, SAYS)}
    assert with_notes(PLAIN.replace("old", "new"), notes) == noted("new")


def test_a_page_without_notes_stays_as_it_is_made() -> None:
    assert notes_of(PLAIN) == {}
    assert with_notes(PLAIN, {}) == PLAIN


def test_a_note_whose_table_is_not_made_any_more_is_not_lost() -> None:
    with pytest.raises(ValueError, match="not made any more: ### First"):
        with_notes(PLAIN.replace("### First", "### Third"), notes_of(noted("old")))


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (PLAIN.replace("| old |", ABOVE), "must begin with one of its marks"),
        (PLAIN.replace("| old |", END), "must begin with one of its marks"),
        (PLAIN.replace("| old |", f"{SAYS}\n\n{SAYS}"), "are the most"),
        (f"{SAYS}\n\n{PLAIN}", "are the most"),
        (PLAIN + noted("old"), "several sections"),
    ],
    ids=["no end", "no beginning", "two of a kind", "no heading", "two headings alike"],
)
def test_notes_that_nobody_could_put_back_are_refused(page: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        notes_of(page)


def test_the_report_command_keeps_notes_and_says_which_to_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, run = tmp_path / "page.md", tmp_path / "name.json"
    page.write_text(f"{BEGIN}\n{PAGE_END}\n", encoding="utf-8")
    some_results().save(run)
    assert report_command([str(run), "--page", str(page)]) == 0
    before = page.read_text(encoding="utf-8")
    assert "### Memory\n" in before
    page.write_text(before.replace("### Memory\n", f"### Memory\n\n{HOW}\n"), encoding="utf-8")
    written = page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert report_command([str(run), "--page", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == written
    assert "notes under '### Memory' fit the new figures" in capsys.readouterr().out


def test_a_page_whose_notes_cannot_be_kept_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, run = tmp_path / "page.md", tmp_path / "name.json"
    text = f"{BEGIN}\n\n### Gone\n\n{SAYS}\n\n{PAGE_END}\n"
    page.write_text(text, encoding="utf-8")
    some_results().save(run)
    assert report_command([str(run), "--page", str(page)]) == 2
    assert "### Gone" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == text
    assert not (tmp_path / "page").exists()


def test_the_documentations_notes_are_as_the_report_would_write_them() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "measurements.md").read_text(encoding="utf-8")
    generated = between(page, BEGIN, PAGE_END)
    notes = notes_of(generated)
    assert "### Large requests and answers" in notes
    bare = generated
    for above, below in notes.values():
        bare = bare.replace(above, "").replace(below, "")
    assert with_notes(bare, notes).strip("\n") == generated.strip("\n")
