"""Measures configurations: each is loaded into the running server, and gets the load of ``toutates.bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.data import RANDOM, Contents, make_contents
from toutates.bench.link import Unreachable
from toutates.bench.load import Load, LoadFailed
from toutates.bench.measured import Measured
from toutates.bench.measuring import Prepared, Questions, Target, measure, prepare
from toutates.bench.metadata import ModelFacts, ask_model
from toutates.tune.accuracy import Accuracy, Near
from toutates.tune.constraints import figure_of
from toutates.tune.server import Server
from toutates.tune.space import COPY, Configs

__all__ = ["Bench", "Sample"]

#: Requests that may fail; more, and a configuration cannot be used.
_MOST_ERRORS: Final = 0.001
_CONNECTIONS: Final = 16
_WARM_SHARE: Final = 0.3
#: Different requests by which a copy is compared with the model.
_COMPARED: Final = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """What came of one load.

    Attributes:
        figures: "rate" (requests per second), "p50" to "p99.99" (nanoseconds), "memory" (bytes, of the whole server);
            where several models are asked, those of each too, by ``figure_of``.
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
        as_they_are: further models, which are loaded once the others are, and stay so.

    Attributes:
        prepared: the requests, with the first answers that later ones are compared with.
        accuracy: what answers of copies of the model in other types have to hold; None where there are no copies.
    """

    def __init__(
        self, server: Server, questions: Questions, seconds: float, under_way: int, as_they_are: Sequence[str] = ()
    ) -> None:
        self._server, self.questions, self._seconds, self._under_way = server, questions, seconds, under_way
        self._as_they_are = as_they_are
        #: What the server has; {} of a model that is as it was.
        self._loaded: dict[str, Mapping[str, Any]] = {}
        self._base: Configs = {}
        self.prepared: Prepared | None = None
        self.accuracy: Accuracy | None = None

    def start(self, base: Configs) -> None:
        """Start the server, and load the models as they are.

        Raises:
            ServerFailed: the server does not start.
            Refused: a model does not load.
            Unreachable: the server does not answer.
        """
        self._server.start()
        self._base = base
        self._load(base)

    def begin(self, questions: Questions | None = None) -> None:
        """Ask for the first answers of what ``start`` has loaded.

        Args:
            questions: in place of those that there were.

        Raises:
            Refused: a model does not answer.
            Unreachable: the server does not answer.
        """
        self.questions = questions or self.questions
        self.prepared = prepare(self._server.endpoint, self.questions)

    def facts(self, model: str) -> ModelFacts:
        """What the server says of a model.

        Raises:
            Refused, Unreachable: it does not.
        """
        return ask_model(self._server.endpoint, model, "", {})

    def contents(self, model: str) -> list[Contents]:
        """What requests to a model hold.

        Raises:
            Refused, Unreachable: they cannot be made.
        """
        return make_contents(self.facts(model), self._to(model, _COMPARED).data, np.random.default_rng(1))[:_COMPARED]

    def nearness(self, model: str, copies: Sequence[str], accuracy: Accuracy) -> dict[str, float | str]:
        """How near the answers of copies are to those of the model, by the copies' files; a text where there are none.

        Raises:
            Refused, Unreachable, ServerFailed: the model itself does not answer.
        """
        questions = self._to(model, _COMPARED)
        self._load(self._base)
        with contextlib.closing(prepare(self._server.endpoint, questions)) as exact:
            expected = [one.expected for one in exact.references if one is not None]
        found: dict[str, float | str] = {}
        for name in copies:
            try:
                self._load({**self._base, model: {**self._base[model], COPY: name}})
                with contextlib.closing(prepare(self._server.endpoint, questions)) as own:
                    given = [one.expected for one in own.references if one is not None]
                values = [accuracy.of(one, other) for one, other in zip(given, expected, strict=True)]
                value = values[0]
                for other in values[1:]:
                    value = accuracy.worse(value, other)
                found[name] = value
            except (Refused, Unreachable) as error:
                self._forget(error)
                found[name] = self._server.has_ended() or str(error)
                if not self._server.runs:
                    self._server.start()
        return found

    def of_rows(self, model: str, rows: int) -> Sample:
        """A load of single requests of so many rows, one at a time, to a model that is loaded.

        Raises:
            Refused, Unreachable, LoadFailed: it cannot be made.
        """
        questions = self._to(model, 4, batch=rows)
        with contextlib.closing(prepare(self._server.endpoint, questions)) as prepared:
            return self._measure(prepared, 1, self._seconds / 2)

    def candidate(self, configs: Configs, *, afresh: bool = False) -> Sample:
        """Load configurations and measure them.

        Args:
            configs: of all models.
            afresh: whether the server is started anew, so that its memory is that of these configurations alone.

        Raises:
            ServerFailed: the server ended, and does not start again.
            KeyboardInterrupt: the load was interrupted.
        """
        assert self.prepared is not None
        if afresh or not self._server.runs:
            self._server.start()
            self._loaded = {}
        try:
            self._load(configs)
            prepared = replace(self.prepared, endpoint=self._server.endpoint)
            if self.accuracy is not None and self._has_copies(configs):
                prepared.references = [one and Near(one, self.accuracy) for one in prepared.references]
            sample = self._measure(prepared, self._under_way, self._seconds)
        except (Refused, Unreachable, LoadFailed) as error:
            # With the reason of a server that ended: too little memory, or a fault of ONNX Runtime.
            fault = self._server.has_ended() or str(error)
            self._forget(error)
            return Sample(fault=fault)
        if "p50" not in sample.figures:  # nothing was answered: it may hang
            self._server.stop()
        return sample

    def _to(self, model: str, different: int, batch: int | None = None) -> Questions:
        """The questions with one model, and so many different requests."""
        questions = self.questions
        targets = [one for one in questions.targets if one.model == model] or [Target(model)]
        # A file of data is for the models that are asked. A member of theirs has other inputs.
        data = replace(questions.data, different=different)
        if targets[0] not in questions.targets:
            data = replace(data, source=RANDOM, shapes={})
        if batch is not None:
            data = replace(data, batch=batch)
        return replace(questions, targets=targets, data=data)

    def _has_copies(self, configs: Configs) -> bool:
        return any(config.get(COPY) != self._base[model].get(COPY) for model, config in configs.items())

    def _load(self, configs: Configs) -> None:
        for model, config in configs.items():
            if config != self._loaded.get(model):
                self._loaded.pop(model, None)
                self._server.load(model, config)
                self._loaded[model] = config
        for model in self._as_they_are:
            if model not in self._loaded:
                self._server.load(model)
                self._loaded[model] = {}

    def _forget(self, error: Exception) -> None:
        """After a failure nobody knows what is loaded; and a server that hangs would keep the next one waiting."""
        self._loaded = {}
        if not isinstance(error, Refused):
            self._server.stop()

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
        return _sample(measured, prepared.models)

    def close(self) -> None:
        """Stop the server."""
        self._server.stop()


def _sample(measured: Measured, models: Sequence[str]) -> Sample:
    figures = measured.figures()
    errors = figures.pop("errors")
    if len(set(models)) > 1:
        for model in dict.fromkeys(models):
            own = measured.of_requests([place for place, name in enumerate(models) if name == model]).figures()
            figures |= {figure_of(name, model): value for name, value in own.items() if name != "errors"}
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
