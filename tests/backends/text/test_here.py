"""Short texts of a table that the calling thread computes, without the queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.text.serving import compute, served
from tests.engine.workers import inline_time
from tests.text_models import DIM, ids_of, make_folder, save_weights, table
from tests.waiting import wait_until
from toutates.backends.text import kind
from toutates.backends.text.computing import Computing
from toutates.backends.text.interface import (
    DEFAULT_OPTIONS,
    MOST_CHARACTERS_HERE,
    Fault,
    TextError,
    TextOptions,
    TextResult,
    TextsHere,
)
from toutates.backends.text.servable import TextServable
from toutates.engine.executor import DOUBTS
from toutates.system.inline_time import INLINE_TIME

_TYPE = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
_LIMIT = 12
#: Runs that take less are computed here: forty times what 64 texts take, so that they do on a slow machine too.
_QUICK_NS = 20_000_000


def make_table(path: Path) -> Path:
    made = make_folder(
        path,
        graph=b"",
        modules=None,
        files={
            "modules.json": [{"idx": 0, "path": "", "type": _TYPE}],
            "config.yaml": {
                "backend": "text",
                "batch_size": 64,
                "capacity": 16,
                "num_executors": 1,
                "allocator": "cpu",
                "parameters": {"max_tokens": _LIMIT},
            },
        },
    )
    save_weights(made, embedding_weight=table())
    (made / "config.json").unlink()
    document = json.loads((made / "tokenizer.json").read_text())
    (made / "tokenizer.json").write_text(json.dumps({**document, "truncation": None}))
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServable]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "_QUICK_TABLE_NS", _QUICK_NS)
        with served(make_table(tmp_path_factory.mktemp("here") / "static")) as found:
            assert isinstance(found, TextServable)
            yield found


def vector(text: str) -> Any:
    return table()[ids_of(text)[1:-1]].mean(0)


def crowd(model: TextServable, texts: list[str], options: TextOptions) -> None:
    """Compute texts of different requests by the queue, and wait until all are."""
    results: SimpleQueue[TextResult] = SimpleQueue()
    for text in texts:
        model.add([text], options, results.put)
    model.commit()
    for _ in texts:
        assert results.get(timeout=120).error is None


def here(model: TextServable, texts: list[str], options: TextOptions = DEFAULT_OPTIONS) -> TextsHere:
    """Compute here, once it is known that runs are quick, and the executor is idle."""
    found: list[TextsHere] = []

    def computed() -> bool:
        done = model.compute_here(texts, options, 0)
        if done is None:
            crowd(model, texts, options)
            return False
        found.append(done)
        return True

    wait_until(computed)
    return found[0]


def test_texts_get_the_vectors_of_the_queue(model: TextServable) -> None:
    texts = ["one", "two three", "six", "one two three four five"]
    done = here(model, texts)
    assert list(done.tokens) == [1, 2, 1, 5]
    queued = compute(model, texts)
    for text, own, other in zip(texts, done.vectors, queued.vectors, strict=True):
        assert own is not None
        npt.assert_allclose(own, vector(text), rtol=1e-5, atol=1e-6)
        npt.assert_array_equal(own, other)
    assert done.timing.taken_ns <= done.timing.started_ns <= done.timing.ended_ns <= done.timing.done_ns


def test_options_are_followed(model: TextServable) -> None:
    vectors: Any = here(model, ["two three"], TextOptions(dimensions=3, normalize=True)).vectors
    [short] = vectors
    wanted = vector("two three")[:3]
    npt.assert_allclose(short, wanted / np.linalg.norm(wanted), rtol=1e-5)


def test_a_text_that_is_unusual_is_left_to_the_queue_and_others_are_not(model: TextServable) -> None:
    long = "one " * (_LIMIT + 1)
    done = here(model, ["one", "", "two", long])
    vectors: Any = done.vectors
    first, empty, third, cut = vectors
    assert empty is None
    assert cut is None
    assert list(done.tokens) == [1, 0, 1, 0]
    npt.assert_allclose(first, vector("one"), rtol=1e-5)
    npt.assert_allclose(third, vector("two"), rtol=1e-5)
    assert compute(model, [long]).tokens == [_LIMIT]
    npt.assert_array_equal(compute(model, [""]).vectors[0], np.zeros(DIM))
    assert model.compute_here(["", long], DEFAULT_OPTIONS, 0) is None


def test_no_surrogate_gets_to_the_tokenizer(model: TextServable) -> None:
    here(model, ["one"])
    assert model.compute_here(["one", "\ud800"], DEFAULT_OPTIONS, 0) is None
    error = compute(model, ["\ud800"]).error
    assert isinstance(error, TextError)
    assert error.fault is Fault.UNICODE


def test_a_run_has_no_more_texts_than_a_worker_may_run(model: TextServable) -> None:
    large = "one " * (MOST_CHARACTERS_HERE // 8 // 4)  # an eighth
    assert len(here(model, ["one"] * 100).vectors) == 64
    # What is too long is left to the queue, so none of these has a vector; but eight were taken.
    assert model.compute_here([large] * 9, DEFAULT_OPTIONS, 0) is None
    words = " ".join(["one"] * _LIMIT)
    assert len(here(model, [words] * 50).vectors) == MOST_CHARACTERS_HERE // len(words)


def test_options_that_need_more_go_through_the_queue(model: TextServable) -> None:
    options = TextOptions(token_vectors=True)
    assert model.compute_here(["one"], options, 0) is None
    assert model.compute_here(["one"], TextOptions(prompt="no such prompt"), 0) is None


def test_where_the_round_has_no_time_left_texts_go_through_the_queue(model: TextServable) -> None:
    here(model, ["one"])
    with inline_time(10**12):
        here(model, ["one"])
        assert INLINE_TIME.left_ns < 10**12
    with inline_time(0):
        assert model.compute_here(["one"], DEFAULT_OPTIONS, 0) is None
        crowd(model, ["one"], DEFAULT_OPTIONS)
    here(model, ["one"])


def test_where_no_executor_is_idle_texts_go_through_the_queue(model: TextServable) -> None:
    here(model, ["one"])
    executors = model.supertensor.executors
    with model.supertensor.lock:
        claimed, executors.idle = executors.idle, []
    assert model.compute_here(["one"], DEFAULT_OPTIONS, 0) is None
    with model.supertensor.lock:
        executors.idle = claimed
    here(model, ["one"])


class Panic(BaseException):
    """What a library in Rust raises for a bug of its own, as the tokenizers do; PyO3 makes it no ``Exception``."""


@pytest.mark.parametrize("failure", [MemoryError, Panic])
def test_a_run_that_fails_leaves_the_texts_to_the_queue(
    model: TextServable, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    here(model, ["one"])

    def fail(*given: Any) -> Any:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(Computing, "means", fail)
        assert model.compute_here(["one"], DEFAULT_OPTIONS, 0) is None
    assert len(here(model, ["one"]).vectors) == 1
    assert model.supertensor.occupancy().rows == 0
    assert model.supertensor.occupancy().in_flight_bytes == 0


def test_texts_are_counted_as_requests_of_one_text(model: TextServable) -> None:
    here(model, ["one", "two"])
    before = model.statistics()
    done = model.compute_here(["one", "two two", ""], DEFAULT_OPTIONS, 0)
    assert done is not None
    after = model.statistics()
    assert after.requests.success - before.requests.success == 2
    assert after.requests.rows - before.requests.rows == 2
    assert after.batches[2].count - before.batches[2].count == 1
    assert after.batches[2].real_elements - before.batches[2].real_elements == 3


def test_a_model_that_is_unloaded_takes_no_texts(tmp_path: Path) -> None:
    with served(make_table(tmp_path / "gone")) as found:
        assert isinstance(found, TextServable)
        here(found, ["one"])
        found.supertensor.close()
        assert found.compute_here(["one"], DEFAULT_OPTIONS, 0) is None


class Clocks:
    """Stands for ``time`` where an executor measures runs: each look at a clock is one later.

    Attributes:
        wall_ns, cpu_ns: what a run takes.
    """

    def __init__(self, wall_ns: int, cpu_ns: int) -> None:
        self.wall_ns, self.cpu_ns = wall_ns, cpu_ns
        self._wall = self._cpu = 0

    def monotonic_ns(self) -> int:
        self._wall += self.wall_ns
        return self._wall

    def thread_time_ns(self) -> int:
        self._cpu += self.cpu_ns
        return self._cpu


def test_runs_that_are_interrupted_stay_quick(model: TextServable, monkeypatch: pytest.MonkeyPatch) -> None:
    here(model, ["one"])
    with monkeypatch.context() as patched:
        patched.setattr("toutates.engine.executor.time", Clocks(500 * _QUICK_NS, 1_000))
        for _ in range(3 * DOUBTS):
            assert model.compute_here(["one"], DEFAULT_OPTIONS, 0) is not None


@pytest.mark.parametrize("between", [0, 5])
def test_runs_that_take_long_go_through_the_queue(
    model: TextServable, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    here(model, ["one"])
    slow, quick = Clocks(25 * _QUICK_NS, 25 * _QUICK_NS), Clocks(1_000, 1_000)
    with monkeypatch.context() as patched:
        for at in range(DOUBTS):
            patched.setattr("toutates.engine.executor.time", quick if at % (between + 1) else slow)
            if model.compute_here(["one"], DEFAULT_OPTIONS, 0) is None:
                break
        assert 1 <= at <= 2 * (between + 1)
