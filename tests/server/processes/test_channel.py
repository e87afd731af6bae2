"""Messages between the parent and a process, over a real socket pair."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from toutates.server.processes.channel import Channel, Handlers, NoAnswer, frame_of_notice, write_frame


async def unanswered(name: str, body: bytes) -> bytes:
    if name == "never":
        await trio.sleep_forever()
    if name == "refused":
        raise NoAnswer("not you")
    if name == "failing":
        raise ValueError("a bug")
    return name.encode() + body


def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    one, other = socket.socketpair()
    return trio.SocketStream(trio.socket.from_stdlib_socket(one)), trio.SocketStream(
        trio.socket.from_stdlib_socket(other)
    )


@asynccontextmanager
async def channels(taken: list[tuple[str, bytes]]) -> AsyncIterator[tuple[Channel, Channel]]:
    streams = pair()
    handlers = Handlers(unanswered, lambda name, body: taken.append((name, body)))
    one, other = (Channel(stream, handlers) for stream in streams)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        nursery.start_soon(other.run)
        yield one, other
        nursery.cancel_scope.cancel()


def test_questions_are_answered_both_ways_and_in_any_order() -> None:
    async def main() -> None:
        taken: list[tuple[str, bytes]] = []
        async with channels(taken) as (one, other):
            large = bytes(3_000_000)
            with trio.fail_after(120):
                one.tell("first", b"1")
                other.tell("second", b"2")
                with pytest.raises(NoAnswer, match=r"^it does not answer within 0\.01 s$"):
                    await one.ask("never", within_s=0.01)
                assert await one.ask("large", large) == b"large" + large
                assert await other.ask("back", b"!") == b"back!"
                with pytest.raises(NoAnswer, match=r"^not you$"):
                    await one.ask("refused")
                with pytest.raises(NoAnswer, match=r"^internal error$"):
                    await one.ask("failing")
            assert sorted(taken) == [("first", b"1"), ("second", b"2")]

    trio.run(main)


def test_what_waits_for_one_that_ends_or_is_given_up_fails() -> None:
    async def main() -> None:
        problems: list[str] = []

        async def ask(channel: Channel) -> None:
            with pytest.raises(NoAnswer) as caught:
                await channel.ask("never")
            problems.append(str(caught.value))

        ours, theirs = pair()
        channel = Channel(ours, Handlers(unanswered, lambda name, body: None))
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, channel)
                await trio.testing.wait_all_tasks_blocked()
                channel.give_up("it hangs")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run)
                nursery.start_soon(ask, channel)
                await trio.testing.wait_all_tasks_blocked()
                await theirs.aclose()
            await ask(channel)
        assert problems == ["it hangs", "it has ended", "it has ended"]

    trio.run(main)


def test_what_nobody_understands_ends_the_channel() -> None:
    async def main() -> None:
        ours, theirs = pair()
        taken: list[str] = []
        channel = Channel(ours, Handlers(unanswered, lambda name, body: taken.append(name)))
        await theirs.send_all(frame_of_notice("known", b""))
        await write_frame(theirs, b"\xc1 nothing of msgpack")
        with trio.fail_after(120), pytest.raises(ExceptionGroup) as caught:
            await channel.run()
        assert caught.group_contains(msgspec.DecodeError)
        assert taken == ["known"]
        await theirs.aclose()

    trio.run(main)
