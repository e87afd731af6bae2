"""Every target's invariant: on cases kept, and on as many made by chance as a suite has time for (``fuzz/run.py``)."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, kept_cases

#: A second's worth.
CASES = {
    "connection": 300,
    "header_blocks": 800,
    "http_connection": 250,
    "http_oracle": 100,
    "infer_request": 5_000,
    "rest_request": 1_500,
    "text_request": 500,
    "alike_bodies": 2_000,
    "region_requests": 150,
    "cuda_regions": 100,
    "policy_queues": 150,
    "stream_messages": 500,
    "configuration": 100,
}
#: As many times as many take long.
LONGER = 7


@pytest.mark.parametrize("name", TARGETS)
def test_invariant_holds_on_cases_kept(name: str) -> None:
    for path in kept_cases(name):
        try:
            TARGETS[name].check(path.read_bytes())
        except Exception as error:
            error.add_note(f"the case is {path}")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_invariant_holds_on_the_same_random_cases_every_time(name: str) -> None:
    for seed in range(CASES[name]):
        TARGETS[name].check(TARGETS[name].make_case(random.Random(seed)))


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_invariant_holds_on_more_random_cases(name: str) -> None:
    for seed in range(CASES[name], LONGER * CASES[name]):
        TARGETS[name].check(TARGETS[name].make_case(random.Random(seed)))


# Slower than the random cases above, but what breaks here comes out as small as it gets.
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_invariant_holds_on_drawn_cases(name: str, rng: random.Random) -> None:
    TARGETS[name].check(TARGETS[name].make_case(rng))


@pytest.mark.parametrize("name", TARGETS)
@given(octets=st.binary(max_size=300))
def test_invariant_holds_on_any_bytes(name: str, octets: bytes) -> None:
    TARGETS[name].check(octets)
