"""``traceparent`` and ``tracestate``, by the rules and examples of W3C Trace Context."""

from __future__ import annotations

import pytest

from toutates.infer.tracing.context import (
    MAX_STATE_CHARS,
    RANDOM,
    SAMPLED,
    TraceContext,
    parse_traceparent,
    parse_tracestate,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", SAMPLED),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", SAMPLED | RANDOM),
        # What the other flags mean is not known yet, and not passed on.
        (f"00-{TRACE}-{SPAN}-ff", SAMPLED | RANDOM),
        (f"00-{TRACE}-{SPAN}-fc", 0),
        # A later version: what is known of it counts.
        (f"cc-{TRACE}-{SPAN}-01", SAMPLED),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", SAMPLED),
        (f"cc-{TRACE}-{SPAN}-01-", SAMPLED),
    ],
)
def test_traceparent_that_is_valid_is_read(value: str, flags: int) -> None:
    assert parse_traceparent(value) == TraceContext(int(TRACE, 16), int(SPAN, 16), flags)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN.upper()}-01",
        f"00-{TRACE}-{SPAN}-0A",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"00_{TRACE}_{SPAN}_01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{'.' * 32}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
        "é" * 55,
    ],
)
def test_traceparent_that_is_malformed_is_ignored(value: str) -> None:
    assert parse_traceparent(value) is None


def test_sampled_flag_is_read() -> None:
    for flags, sampled in (("00", False), ("01", True), ("02", False), ("03", True)):
        context = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
        assert context is not None
        assert context.sampled is sampled


def test_tracestate_is_read_in_order() -> None:
    assert parse_tracestate("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE,tenant1@vendor=a b") == [
        ("rojo", "00f067aa0ba902b7"),
        ("congo", "t61rcWkgMzE"),
        ("tenant1@vendor", "a b"),
    ]
    assert parse_tracestate("") == []
    assert parse_tracestate(", , \t,a=1,") == [("a", "1")]


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "=1",
        "a=",
        "A=1",
        "1a=1",
        "a=1=2",
        "a=é",
        "a@b@c=1",
        "a=1,a=2",
        "a" * 257 + "=1",
        "a=" + "1" * 257,
        ",".join(f"a{at}=1" for at in range(33)),
    ],
)
def test_tracestate_that_is_malformed_anywhere_is_ignored_as_a_whole(value: str) -> None:
    assert parse_tracestate(value) == []
    assert parse_tracestate("b=1," + value) == []


def test_tracestate_that_is_too_long_loses_its_long_members_first_and_then_its_last() -> None:
    short = [(f"k{at}", "v" * 40) for at in range(9)]
    long = ("long", "v" * 200)
    pairs = [*short[:4], long, *short[4:]]
    assert parse_tracestate(",".join(f"{key}={value}" for key, value in pairs)) == short
    many = [(f"k{at:02}", "v" * 100) for at in range(9)]
    kept = parse_tracestate(",".join(f"{key}={value}" for key, value in many))
    assert kept == many[: len(kept)]
    assert MAX_STATE_CHARS - 105 < len(",".join(f"{key}={value}" for key, value in kept)) <= MAX_STATE_CHARS
