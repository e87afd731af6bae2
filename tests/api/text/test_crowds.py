"""Requests with one short text that come in one round are computed and answered together, each by its own rules."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.api.text.doubles import Double, vector_of
from tests.api.text.front import Front, front, inflight
from tests.api.text.line import request
from toutates.api.text.work import MOST_RUNS_HERE
from toutates.backends.text.interface import TextOptions, TextResult, TextsHere, TextTimes
from toutates.engine.result import Timing
from toutates.net.http1.connection import HttpConnection

_TIMING = Timing(1, 2, 3, 4)


class Here(Double):
    """A model that computes in the calling thread texts without the word ``later``.

    Attributes:
        runs: the texts of each run.
        most: texts of a run; 0 for none.
        broken: what a run raises.
    """

    may_compute_here = True

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[Sequence[str], TextOptions]] = []
        self.most = 64
        self.broken: Exception | None = None

    def compute_here(self, texts: Sequence[str], options: TextOptions, arrived_ns: int) -> TextsHere | None:
        if self.broken is not None:
            raise self.broken
        if not self.most:
            return None
        texts = texts[: self.most]
        self.runs.append((list(texts), options))
        results: list[TextResult | None] = [
            None if "later" in text else self._result([text], options) for text in texts
        ]
        vectors: Any = [None if one is None else one.vectors[0] for one in results]
        tokens = [0 if one is None else one.tokens[0] for one in results]
        return TextsHere(vectors, tokens, TextTimes(1_000, 2_000, 3_000), _TIMING)


@pytest.fixture
def model() -> Here:
    return Here()


@pytest.fixture
def api(model: Here) -> Iterator[Front]:
    with front({"table": model}) as made:
        made.observed.clear()
        yield made


def crowd(api: Front, bodies: Sequence[dict[str, Any]], path: str = "/v1/embeddings") -> list[HttpConnection]:
    """Requests that come in one round, by a connection each."""
    connections = []
    for body in bodies:
        api.connect()
        connections.append(api.connection)
        api.send(request(path, {"model": "table", **body}))
    return connections


def answers(api: Front, connections: Sequence[HttpConnection]) -> list[Any]:
    found = []
    for connection in connections:
        api.connection = connection
        found.append(api.read())
    return found


def vector(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    assert int(answer.fields["content-length"]) == len(answer.body)
    [entry] = answer.document["data"]
    if isinstance(entry["embedding"], str):
        return np.frombuffer(base64.b64decode(entry["embedding"], validate=True), "<f4")
    return np.array(entry["embedding"], np.float32)


def test_a_round_is_one_run_and_each_gets_its_own_vector(api: Front, model: Here) -> None:
    texts = [f"text {at}" for at in range(20)]
    forms = ["base64", "float"] * 10
    connections = crowd(
        api, [{"input": text, "encoding_format": form} for text, form in zip(texts, forms, strict=True)]
    )
    for text, answer in zip(texts, answers(api, connections), strict=True):
        npt.assert_array_equal(vector(answer), vector_of(text))
        assert answer.document["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
        assert answer.document["model"] == "table"
    assert [run for run, _ in model.runs] == [texts]
    assert not model.asked
    assert api.counters.text_answers == {"200 /v1/embeddings": 20}


def test_requests_with_other_options_or_another_route_are_runs_of_their_own(api: Front, model: Here) -> None:
    connections = crowd(api, [{"input": "a"}, {"input": "b", "dimensions": 3}, {"input": "c"}, {"input": ["d"]}])
    connections += crowd(api, [{"inputs": "e"}], "/embed")
    found = answers(api, connections)
    assert [len(vector(answer)) for answer in found[:4]] == [8, 3, 8, 8]
    npt.assert_allclose(found[4].document, [vector_of("e").tolist()])
    assert found[4].fields["x-compute-characters"] == "1"
    assert found[4].fields["x-inference-time-us"] == "3"
    assert [run for run, _ in model.runs] == [["a", "c", "d"], ["b"], ["e"]]
    assert [options.dimensions for _, options in model.runs] == [None, 3, None]
    assert api.counters.text_answers == {"200 /v1/embeddings": 4, "200 /embed": 1}


def test_a_text_that_the_run_leaves_out_goes_through_the_queue_alone(api: Front, model: Here) -> None:
    bodies: list[dict[str, Any]] = [{"input": "a"}, {"input": "later"}, {"input": "b"}, {"input": ["c", "d"]}]
    bodies.append({"input": "later " * 40, "truncate": False})
    found = answers(api, crowd(api, bodies))
    npt.assert_array_equal(vector(found[0]), vector_of("a"))
    npt.assert_array_equal(vector(found[1]), vector_of("later"))
    npt.assert_array_equal(vector(found[2]), vector_of("b"))
    assert found[3].status == 200
    assert found[4].status == 400
    assert "at most 16 tokens" in found[4].document["error"]["message"]
    assert [list(texts) for texts, _ in model.asked] == [["c", "d"], ["later"], ["later " * 40]]


def test_what_no_run_takes_is_added(api: Front, model: Here) -> None:
    model.most = 0
    for answer in answers(api, crowd(api, [{"input": "a"}, {"input": "b"}])):
        assert answer.status == 200
    assert [list(texts) for texts, _ in model.asked] == [["a"], ["b"]]


def test_a_round_makes_a_few_runs_and_leaves_the_rest_to_the_model(api: Front, model: Here) -> None:
    model.most = 3
    texts = [f"text {at}" for at in range(3 * MOST_RUNS_HERE + 2)]
    for text, answer in zip(texts, answers(api, crowd(api, [{"input": text} for text in texts])), strict=True):
        npt.assert_array_equal(vector(answer), vector_of(text))
    assert [len(run) for run, _ in model.runs] == [3] * MOST_RUNS_HERE
    assert [list(added) for added, _ in model.asked] == [[text] for text in texts[-2:]]


def test_a_bug_of_the_run_costs_no_request(api: Front, model: Here) -> None:
    model.broken = ZeroDivisionError("a bug")
    [connection] = crowd(api, [{"input": "a"}])
    while api.worker.soon:
        api.worker.soon.pop(0)()
    assert api.worker.bugs == [model.broken]
    api.worker.bugs.clear()
    [answer] = answers(api, [connection])
    npt.assert_array_equal(vector(answer), vector_of("a"))


def test_a_model_that_is_full_refuses_what_it_has_not_computed(api: Front, model: Here) -> None:
    model.full = True
    first, second = answers(api, crowd(api, [{"input": "later"}, {"input": "a"}]))
    assert first.status == 429
    assert second.status == 200


def test_a_vector_that_json_has_no_word_for_is_that_requests_error(api: Front) -> None:
    first, second = answers(api, crowd(api, [{"input": "not a number"}, {"input": "a"}]))
    assert first.status == 500
    assert second.status == 200


def test_a_caller_who_has_left_gets_nothing_and_others_their_vector(api: Front) -> None:
    gone, stays = crowd(api, [{"input": "a"}, {"input": "b"}])
    gone.connection_lost()
    [answer] = answers(api, [stays])
    npt.assert_array_equal(vector(answer), vector_of("b"))
    assert not gone.has_output


def test_requests_that_are_computed_count_as_in_flight_until_their_answer(model: Here) -> None:
    bound = inflight(2)
    with front({"table": model}, inflight=bound) as api:
        connections = crowd(api, [{"input": "a"}, {"input": "later"}, {"input": "b"}])
        assert bound.count == 2
        found = answers(api, connections)
        assert [answer.status for answer in found] == [200, 200, 429]
        assert bound.count == 0


def test_an_observed_request_has_the_times_of_its_run(api: Front) -> None:
    answers(api, crowd(api, [{"input": "a"}, {"input": "b"}]))
    assert [(one.taken_ns, one.started_ns, one.ended_ns, one.done_ns) for one in api.observed] == [(1, 2, 3, 4)] * 2
    assert [one.rows for one in api.observed] == [1, 1]


def test_requests_that_are_not_observed_are_answered_and_counted_alike(api: Front) -> None:
    observer = api.watching.observer
    seen = observer.seen
    for sampling in observer._samplings:
        observer.sample(sampling, 1 << 40)
        sampling.next_at = 1 << 40
    observer._plan_next()
    texts = ["a", "later", "b c"]
    for text, answer in zip(texts, answers(api, crowd(api, [{"input": text} for text in texts])), strict=True):
        npt.assert_array_equal(vector(answer), vector_of(text))
    assert observer.seen - seen == 3
    assert api.counters.text_answers == {"200 /v1/embeddings": 3}
    assert not api.observed


def test_pipelined_requests_are_answered_in_their_order(api: Front, model: Here) -> None:
    texts = ["a", "later", "b"]
    api.send(b"".join(request("/v1/embeddings", {"model": "table", "input": text}) for text in texts))
    while api.worker.soon:
        api.worker.soon.pop(0)()
    found = re.findall(rb'"embedding":(\[[^\]]*\])', b"".join(api.connection.take_output()))
    npt.assert_array_equal(
        [np.array(json.loads(one), np.float32) for one in found], [vector_of(text) for text in texts]
    )
