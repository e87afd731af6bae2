"""Answers that are kept: how often they are made, and when anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.h2grpc.frames import block, data, headers, message, request
from tests.h2grpc.support import Server
from toutates.api.grpc import shared_answers as module
from toutates.api.grpc.shared_answers import shared_answers
from toutates.h2grpc import Call, Limits
from toutates.net import Worker
from toutates.protocol.grpc_service_pb2 import ModelStatisticsRequest, ModelStatisticsResponse
from toutates.system.errors import InvalidRequest


class Kept:
    """The handler on a worker whose rounds the test makes, and what it answered with."""

    def __init__(self, *, versions: Callable[[ModelStatisticsResponse], int] | None = None, takes_ns: int = 0) -> None:
        self.worker = Worker("test", Limits())
        self.worker.now_ns = 1
        self.table: object = object()
        self.made = 0
        self.takes_ns = takes_ns
        self.cpu_ns = 0
        self.handle = shared_answers(
            ModelStatisticsRequest,
            self._answer,
            lambda asked: (asked.name, asked.version),
            self.worker,
            lambda: self.table,
            versions_of=versions,
        )

    def _answer(self, asked: ModelStatisticsRequest) -> ModelStatisticsResponse:
        if asked.name == "wrong":
            raise InvalidRequest("no such model")
        self.made += 1
        self.cpu_ns += self.takes_ns
        response = ModelStatisticsResponse()
        response.model_stats.add(name=asked.name, inference_count=self.made)
        return response

    def thread_time_ns(self) -> int:
        """The CPU time of the worker's thread. This object can stand in for the module ``time``."""
        return self.cpu_ns

    def ask(self, body: bytes) -> int:
        """Which of the answers that were made this one is."""
        answers: list[bytes] = []

        class Asking(Call):
            def reply(self, message: object, *metadata: object) -> None:
                assert isinstance(message, bytes)
                answers.append(message)

        server = Server.opened()
        call = server.call(headers(1, block(request("/test.Echo/Unary"))) + data(1, message(body), 1))
        call.__class__ = Asking
        self.handle(call)
        return ModelStatisticsResponse.FromString(answers[0]).model_stats[0].inference_count


def asking(name: str, padding: bytes = b"") -> bytes:
    return ModelStatisticsRequest(name=name).SerializeToString() + padding


def unknown_field(content: bytes) -> bytes:
    return b"\xfa\x01" + bytes((len(content),)) + content


def test_an_answer_is_made_once_per_table_whatever_the_request_is_padded_with() -> None:
    kept = Kept()
    assert [kept.ask(asking("m")), kept.ask(asking("n")), kept.ask(asking("m"))] == [1, 2, 1]
    assert [kept.ask(asking("m", unknown_field(b"%d" % number))) for number in range(5)] == [1] * 5
    kept.worker.now_ns += 10**9
    assert kept.ask(asking("m")) == 1
    kept.table = object()
    assert kept.ask(asking("m")) == 3


def test_statistics_are_made_anew_in_each_round() -> None:
    kept = Kept(versions=lambda made: 1)
    assert [kept.ask(asking("m")), kept.ask(asking("m"))] == [1, 1]
    kept.worker.now_ns += 1
    assert kept.ask(asking("m")) == 2


@pytest.mark.parametrize(
    ("versions", "takes_ns", "kept_ns"),
    [(16, 10**9, 1), (17, 1_000_000, 10_000_000), (17, 5_000_000, 50_000_000), (17, 10**9, 100_000_000)],
)
def test_statistics_of_many_versions_take_a_tenth_of_the_cpu_time_at_most(
    versions: int, takes_ns: int, kept_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(versions=lambda made: versions, takes_ns=takes_ns)
    monkeypatch.setattr(module, "time", kept)
    kept.ask(asking(""))
    kept.worker.now_ns += kept_ns - 1
    assert kept.ask(asking("")) == 1
    kept.worker.now_ns += 1
    assert kept.ask(asking("")) == 2


def test_statistics_of_few_versions_are_of_their_round_whatever_else_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(versions=lambda made: 9 if made.model_stats[0].name else 90, takes_ns=1_000_000)
    monkeypatch.setattr(module, "time", kept)
    assert [kept.ask(asking(name)) for name in ("", "m", "n", "m")] == [1, 2, 3, 2]
    kept.worker.now_ns += 10
    assert [kept.ask(asking(name)) for name in ("", "m", "n", "")] == [1, 4, 5, 1]
    kept.worker.now_ns += 10**7
    assert [kept.ask(asking(name)) for name in ("m", "", "m")] == [6, 7, 6]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS", 4)
    kept = Kept()
    assert [kept.ask(asking(f"m{number}")) for number in range(5)] == [1, 2, 3, 4, 5]
    assert kept.ask(asking("m0")) == 6


def test_errors_are_not_kept() -> None:
    kept = Kept()
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="no such model"):
            kept.ask(asking("wrong"))
