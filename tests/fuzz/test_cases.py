"""Every target's invariant: on cases kept, and on as many made by chance as there is time for (``fuzz/run.py``)."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, kept_cases

#: Some seconds' worth.
CASES = {
    "connection": 2_100,
    "header_blocks": 5_600,
    "http_connection": 1_750,
    "http_oracle": 700,
    "infer_request": 35_000,
    "rest_request": 10_500,
    "text_request": 3_500,
    "alike_bodies": 14_000,
    "region_requests": 1_050,
    "cuda_regions": 700,
    "policy_queues": 1_050,
    "stream_messages": 3_500,
    "configuration": 700,
}


@pytest.mark.parametrize("name", TARGETS)
def test_invariant_holds_on_cases_kept(name: str) -> None:
    for path in kept_cases(name):
        try:
            TARGETS[name].check(path.read_bytes())
        except Exception as error:
            error.add_note(f"the case is {path}")
            raise


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_invariant_holds_on_the_same_random_cases_every_time(name: str) -> None:
    for seed in range(CASES[name]):
        TARGETS[name].check(TARGETS[name].make_case(random.Random(seed)))


# Slower than the random cases above, but what breaks here comes out as small as it gets.
@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_invariant_holds_on_drawn_cases(name: str, rng: random.Random) -> None:
    TARGETS[name].check(TARGETS[name].make_case(rng))


@pytest.mark.parametrize("name", TARGETS)
@given(octets=st.binary(max_size=300))
def test_invariant_holds_on_any_bytes(name: str, octets: bytes) -> None:
    TARGETS[name].check(octets)
