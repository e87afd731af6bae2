"""Measures configurations: each is loaded into the running server, and gets the load of ``toutates.bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toutates.bench.calls import Refused
from toutates.bench.link import Unreachable
from toutates.bench.load import Load, LoadFailed
from toutates.bench.measured import Measured
from toutates.bench.measuring import Prepared, Questions, measure, prepare
from toutates.tune.server import Server

__all__ = ["Bench", "Sample"]

#: Requests that may fail; more, and a configuration cannot be used.
_MOST_ERRORS: Final = 0.001
_CONNECTIONS: Final = 16
_WARM_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """What came of one load.

    Attributes:
        figures: "rate" (requests per second), "p50" to "p99.99" (nanoseconds), "memory" (bytes, of the whole server).
        fault: why the configuration cannot be used, or "".
        doubt: why the figures are the client's, or "".
        infer_us: that the model computed for a request, on average; None if nobody counts it.
        wrong: whether answers differ from those of the configuration as it is.
    """

    figures: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""
    doubt: str = ""
    infer_us: float | None = None
    wrong: bool = False


class Bench:
    """The server with what is asked of it.

    Args:
        server: it.
        questions: what is asked.
        seconds: that a load takes.
        under_way: requests of a load without an answer.

    Attributes:
        prepared: the requests, with the first answers that later ones are compared with.
    """

    def __init__(self, server: Server, questions: Questions, seconds: float, under_way: int) -> None:
        self._server, self._questions, self._seconds, self._under_way = server, questions, seconds, under_way
        self._loaded: Mapping[str, Any] | None = None
        self.prepared: Prepared | None = None

    def begin(self, base: Mapping[str, Any]) -> None:
        """Start the server, load the model as it is, and ask for the first answers.

        Raises:
            ServerFailed: the server does not start.
            Refused: the model does not load, or does not answer.
            Unreachable: the server does not answer.
        """
        self._server.start()
        self._load(base)
        self.prepared = prepare(self._server.endpoint, self._questions)

    def of_rows(self, rows: int) -> Sample:
        """A load of single requests of so many rows, one at a time, to what is loaded.

        Raises:
            Refused, Unreachable, LoadFailed: it cannot be made.
        """
        questions = replace(self._questions, data=replace(self._questions.data, batch=rows))
        with contextlib.closing(prepare(self._server.endpoint, questions)) as prepared:
            return self._measure(prepared, 1, self._seconds / 2)

    def candidate(self, config: Mapping[str, Any], *, afresh: bool = False) -> Sample:
        """Load a configuration and measure it.

        Args:
            config: all keys.
            afresh: whether the server is started anew, so that its memory is that of this configuration alone.

        Raises:
            ServerFailed: the server ended, and does not start again.
            KeyboardInterrupt: the load was interrupted.
        """
        assert self.prepared is not None
        if afresh or not self._server.runs:
            self._server.start()
            self._loaded = None
        try:
            self._load(config)
            self.prepared.endpoint = self._server.endpoint
            return self._measure(self.prepared, self._under_way, self._seconds)
        except (Refused, Unreachable, LoadFailed) as error:
            self._loaded = None
            # With the reason of a server that ended: too little memory, or a fault of ONNX Runtime.
            return Sample(fault=self._server.has_ended() or str(error))

    def _load(self, config: Mapping[str, Any]) -> None:
        if config != self._loaded:
            self._server.load(config)
            self._loaded = config

    def _measure(self, prepared: Prepared, under_way: int, seconds: float) -> Sample:
        load = Load(
            prepared.endpoint.host,
            prepared.endpoint.port,
            (),
            min(under_way, _CONNECTIONS),
            None,
            seconds,
            under_way=under_way,
            warm_s=seconds * _WARM_SHARE,
        )
        measured = measure(prepared, load)
        if measured.stopped:
            raise KeyboardInterrupt
        return _sample(measured)

    def close(self) -> None:
        """Stop the server."""
        self._server.stop()


def _sample(measured: Measured) -> Sample:
    figures = measured.figures()
    errors = figures.pop("errors")
    if (memory := measured.of_server("resident_mib")) is not None:
        figures["memory"] = memory.mean * 2**20
    infer = measured.of_server("infer_us")
    fault = ""
    if measured.wrong:
        fault = f"answers differ from those of the configuration as it is: {measured.wrong[0]}"
    elif errors > _MOST_ERRORS:
        text = next(iter(measured.texts.values()), "")
        fault = f"{errors:.1%} of requests were not answered with OK{': ' if text else ''}{text}"
    return Sample(figures, fault, measured.doubt(), infer.mean if infer else None, wrong=bool(measured.wrong))
