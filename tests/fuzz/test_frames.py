"""Frames made at random, unlike any session: nothing is raised, and the short way through the loop changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.sessions import PROFILES, SEED_BYTES, TIGHT, check, drive
from tests.h2grpc.frames import OPENING, frame, with_reserved_bit
from tests.h2grpc.support import Server, describe
from tests.h2grpc.test_connection_errors import CONNECTION_ERRORS, STREAM_ERRORS
from tests.h2grpc.test_connection_splitting import SESSIONS

SEEDS = st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES)
FRAMES = st.builds(
    frame,
    st.one_of(st.integers(0, 10), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 9, 0x2D]), st.integers(0, 255)),
    st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    st.one_of(st.binary(max_size=64), st.sampled_from([bytes(4), bytes(8), b"\0\0\0\1", b"\0\0\0\0\0", bytes(6)])),
)
CORPUS = [
    *SESSIONS.values(),
    *(octets for octets, _ in CONNECTION_ERRORS.values()),
    *(OPENING + octets for octets, _ in STREAM_ERRORS.values()),
]


@settings(max_examples=200)
@given(SEEDS, st.lists(FRAMES, max_size=30))
def test_random_frames(seed: bytes, frames: list[bytes]) -> None:
    check(seed + OPENING + b"".join(frames))


@settings(max_examples=200)
@given(SEEDS, st.lists(st.sampled_from(CORPUS), min_size=1, max_size=3), st.lists(FRAMES, max_size=3))
def test_sessions_of_other_tests_one_after_the_other(seed: bytes, sessions: list[bytes], frames: list[bytes]) -> None:
    rest = [session.removeprefix(OPENING) for session in sessions[1:]]
    check(seed + sessions[0] + b"".join(frames) + b"".join(rest))


@settings(max_examples=200)
@given(st.lists(FRAMES, max_size=30))
def test_random_frames_do_the_same_off_the_fast_path(frames: list[bytes]) -> None:
    def outcome(sent: list[bytes]) -> tuple[object, bytes]:
        server = Server.opened(TIGHT)
        for octets in sent:
            server.receive(octets)
        return describe(server.events), server.sent()

    assert outcome(frames) == outcome([with_reserved_bit(octets) for octets in frames])


def test_answers_between_the_same_bytes_are_the_same_answers() -> None:
    # What makes `check` worth something: two answers to the same bytes at other places are another session.
    octets = SESSIONS["unary calls"]
    seeds = [bytes([number]) * SEED_BYTES for number in range(20)]
    assert any(
        drive(octets, [len(octets) // 2], [], PROFILES[0], seed) != drive(octets, [len(octets)], [], PROFILES[0], seed)
        for seed in seeds
    )
