"""Clients of ModelStreamInfer: bare grpcio, message for message, and tritonclient."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.e2e.support import SERVICE, pb, triton

__all__ = ["STREAM", "Conversation", "conversation", "final_of", "triton_stream"]

STREAM: Final = SERVICE + "ModelStreamInfer"
_SECONDS: Final = 120.0
_END: Final = object()


class Conversation:
    """One call of ModelStreamInfer.

    Args:
        channel: of grpcio.
        options: of the call.
    """

    def __init__(self, channel: Any, **options: Any) -> None:
        self.channel = channel
        self._to_send: queue.Queue[Any] = queue.Queue()
        self.call = channel.stream_stream(STREAM)(self._requests(), **{"timeout": _SECONDS, **options})

    def _requests(self) -> Iterator[bytes]:
        while (message := self._to_send.get()) is not _END:
            yield message

    def send(self, *messages: Any) -> None:
        """Send requests, serialized or not."""
        for message in messages:
            self._to_send.put(message if isinstance(message, bytes) else message.SerializeToString())

    def read(self, count: int = 1) -> list[Any]:
        """The next answers."""
        return [pb.ModelStreamInferResponse.FromString(next(self.call)) for _ in range(count)]

    def end(self) -> list[Any]:
        """Send no more; the answers that are left."""
        self._to_send.put(_END)
        return [pb.ModelStreamInferResponse.FromString(answer) for answer in self.call]

    def ask(self, message: Any) -> Any:
        """A request's answer, if it has one and no other is due."""
        self.send(message)
        return self.read()[0]


@contextmanager
def conversation(channel: Any, **options: Any) -> Iterator[Conversation]:
    """One call, which is cancelled at the end if it is still open."""
    one = Conversation(channel, **options)
    try:
        yield one
    finally:
        one.call.cancel()
        one.send(b"")  # has the thread that sends look, and end
        one._to_send.put(_END)


def final_of(answer: Any) -> bool:
    """``triton_final_response`` of an answer."""
    value: bool = answer.infer_response.parameters["triton_final_response"].bool_param
    return value


@contextmanager
def triton_stream(address: str, **options: Any) -> Iterator[tuple[Any, queue.Queue[Any]]]:
    """A tritonclient with a stream, and where its callback puts (result, error)."""
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), **options)
        yield client, answers
        client.stop_stream()


def answers_of(answers: queue.Queue[Any], count: int) -> Sequence[Any]:
    """The next answers, as (result, error)."""
    return [answers.get(timeout=_SECONDS) for _ in range(count)]
