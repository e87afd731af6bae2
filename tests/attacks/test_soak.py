"""The soak passes a server that works, and its account fails one that does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from fuzz.soak.account import Account, Entry, Sample
from tests.e2e.process import PYTHON, ROOT

START = Sample(0.0, 100.0, 20, 10)


def account(entry: Entry, *samples: Sample) -> Account:
    made = Account(samples=[START, *samples], warm_up=0)
    made.add("client", entry)
    return made


def whole() -> Entry:
    return Entry(sent=10, right=6, refused=Counter({"RESOURCE_EXHAUSTED": 3}), given_up=1)


def test_a_soak_in_which_every_request_is_accounted_for_is_passed() -> None:
    passed = account(whole(), Sample(60.0, 120.0, 20, 10))
    assert passed.verdict() == []
    assert "Passed." in passed.markdown("heading")
    assert "| client | 10 | 6 | RESOURCE_EXHAUSTED 3 | 1 | 0 | 0 |" in passed.markdown("heading")


@pytest.mark.parametrize(
    ("entry", "sample", "word"),
    [
        (Entry(sent=2, right=1), START, "lost"),
        (Entry(sent=2, right=1, faults=["other bits"]), START, "other bits"),
        (Entry(sent=1, given_up=1), START, "no request was answered"),
        (whole(), Sample(60.0, 100.0, 21, 10), "file descriptors"),
        (whole(), Sample(60.0, 100.0, 20, 11), "threads"),
        (whole(), Sample(60.0, 140.0, 20, 10), "memory"),
    ],
)
def test_a_soak_fails_for_what_is_lost_wrong_or_left(entry: Entry, sample: Sample, word: str) -> None:
    failed = account(entry, sample)
    assert any(word in problem for problem in failed.verdict())
    assert "**Failed**" in failed.markdown("heading")


def test_memory_that_is_given_back_is_no_growth_and_memory_that_stays_is() -> None:
    def samples(*mib: float) -> list[Sample]:
        return [Sample(60.0 * at, size, 20, 10) for at, size in enumerate(mib)]

    assert account(whole(), *samples(110, 120, 110, 180, 110, 180)).verdict() == []
    assert any("memory" in problem for problem in account(whole(), *samples(110, 120, 130, 140, 150, 160)).verdict())


def test_the_account_says_how_memory_went_in_the_second_half() -> None:
    samples = [Sample(360.0 * at, size, 20, 10) for at, size in enumerate((110, 190, 120, 121, 122), 1)]
    text = account(whole(), *samples).markdown("heading")
    assert "Memory in the second half: 120.0 to 122.0 MiB, +10.0 MiB an hour." in text


def test_what_a_server_opens_once_is_not_left_behind_but_more_of_it_is() -> None:
    passed = account(whole(), Sample(60.0, 100.0, 22, 11))
    passed.late_files, passed.late_threads = 2, 1
    assert passed.verdict() == []
    failed = account(whole(), Sample(60.0, 100.0, 23, 12))
    failed.late_files, failed.late_threads = 2, 1
    assert len(failed.verdict()) == 2


@pytest.mark.long
def test_a_short_soak_is_passed() -> None:
    pytest.importorskip("tritonclient.grpc")
    command = [sys.executable, "-m", "fuzz.soak", "--minutes", "0.05", "--clients", "3", "--python", PYTHON]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert "Passed." in ended.stdout
