"""Queues of a real server: preferred sizes, delays, priorities, timeouts and their counters, as clients see them.

Runs of the model "gate" wait for the test. Each test loads it with the configuration that it needs.
"""

from __future__ import annotations

import json
import queue
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.control import EXPLICIT, client_of, fails
from tests.e2e.held import Runs, running_held
from tests.e2e.process import ServerProcess
from tests.e2e.python_models import HEAD, add_model
from tests.e2e.support import triton
from tests.ensembles import add_ensemble, add_graph, pbtxt, step
from tests.graphs import DOUBLE_LENGTHS
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

LOADS: Final = count()
HOUR_US: Final = 3_600_000_000
SOON_US: Final = 20_000
EXPIRED: Final = ("UNAVAILABLE", "Request timeout expired")
#: Calls the gate with what the request says of itself.
CALLER: Final = """
def execute(self, requests):
    answers = []
    for request in requests:
        said = json.loads(request.parameters())
        inner = pb_utils.InferenceRequest(
            model_name="gate", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", input_of(request))],
            parameters={"priority": said["inner_priority"]}, timeout=said["inner_timeout"],
        )
        response = inner.exec()
        if response.has_error():
            answers.append(pb_utils.InferenceResponse([], pb_utils.TritonError(response.error().message())))
        else:
            answers.append(answer(request, pb_utils.get_output_tensor_by_name(response, "y").as_numpy()))
    return answers
"""

#: Answers, or fails for negative numbers, once there is a file of the number; then it makes another one.
TURNS: Final = """
def execute(self, requests):
    answers = []
    for request in requests:
        number = int(input_of(request)[0, 0])
        while not os.path.exists(f"FOLDER/{number}"):
            time.sleep(0.002)
        array = answer(request, input_of(request))
        answers.append(array if number > 0 else pb_utils.InferenceResponse([], pb_utils.TritonError("no")))
        open(f"FOLDER/done{number}", "w").close()
    return answers
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("turns")


@pytest.fixture(scope="module")
def queues(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    root = tmp_path_factory.mktemp("repository")
    add_graph(root, "gate", DOUBLE_LENGTHS, config="max_batch_size: 8")
    chain = [step("gate", "x=IN", "y=OUT")]
    add_ensemble(root, "chain", pbtxt(["IN FP32 [-1]"], ["OUT FP32 [-1]"], chain, batch=1))
    add_model(root, "caller", CALLER, dims="[ -1 ]", head="import json\n" + HEAD, more="dynamic_batching {}")
    ordered = "dynamic_batching { preserve_ordering: true } instance_group { count: 3 kind: KIND_CPU }"
    turns = TURNS.replace("FOLDER", str(folder))
    add_model(root, "turns", turns, rows=1, more=ordered, isolation="thread")
    flags = [*EXPLICIT, "--load-model", "*", "--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"]
    with running_held(root, tmp_path_factory.mktemp("server"), flags, model="gate") as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def runs(queues: tuple[ServerProcess, Runs]) -> Runs:
    return queues[1]


@pytest.fixture(scope="module")
def server(queues: tuple[ServerProcess, Runs]) -> ServerProcess:
    return queues[0]


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


def load(client: Any, *, rows: int = 8, preferred: Sequence[int] = (), delay_us: int = 0, **batching: Any) -> None:
    """Load the gate with a queue; always anew, so that no run is known to be quick, and then held on a worker."""
    given = {"preferred_batch_size": preferred, "max_queue_delay_microseconds": delay_us, **batching}
    number = {"number": {"string_value": str(next(LOADS))}}
    config = {"backend": "onnxruntime", "max_batch_size": rows, "dynamic_batching": given, "parameters": number}
    client.load_model("gate", config=json.dumps(config))


def policy(size: int = 0, timeout_us: int = 0, action: str = "REJECT", *, override: bool = False) -> dict[str, Any]:
    return {
        "max_queue_size": size,
        "default_timeout_microseconds": timeout_us,
        "timeout_action": action,
        "allow_timeout_override": override,
    }


def tensor(kind: Any, value: float, rows: int = 1, width: int = 4, name: str = "x") -> Any:
    made = kind.InferInput(name, [rows, width], "FP32")
    made.set_data_from_numpy(np.full((rows, width), value, np.float32))
    return made


class Sent:
    """A request under way."""

    def __init__(self, client: Any, value: float = 1, rows: int = 1, width: int = 4, **more: Any) -> None:
        self._outcome: queue.Queue[tuple[Any, Any]] = queue.Queue()
        model = more.pop("model", "gate")
        name = "IN" if model == "chain" else "x"
        inputs = [tensor(triton, value, rows, width, name)]
        self.call = client.async_infer(model, inputs, lambda result, error: self._outcome.put((result, error)), **more)

    @property
    def is_done(self) -> bool:
        return not self._outcome.empty()

    def answer(self, name: str = "y") -> Any:
        result, error = self._outcome.get(timeout=120)
        assert error is None, error
        return result.as_numpy(name)

    def failure(self) -> tuple[str, str]:
        result, error = self._outcome.get(timeout=120)
        assert result is None
        return str(error.status()).removeprefix("StatusCode."), str(error.message())


def sizes(client: Any) -> dict[int, int]:
    """How many batches of each size the gate has run since it was loaded."""
    found = client.get_inference_statistics("gate").model_stats[0]
    return {one.batch_size: one.compute_infer.count for one in found.batch_stats}


def metrics(server: ServerProcess, name: str, model: str = "gate") -> dict[str, float]:
    """A metric of a model, by its reason, or by nothing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith(name + "{") and f'model="{model}"' in line:
            labels, _, value = line.rpartition(" ")
            found[labels.partition('reason="')[2].partition('"')[0]] = float(value)
    return found


def failures(server: ServerProcess, model: str = "gate") -> dict[str, float]:
    return metrics(server, "nv_inference_request_failure", model)


def pending(server: ServerProcess) -> float:
    return metrics(server, "nv_inference_pending_request_count")[""]


def wait_pending(server: ServerProcess, count: int) -> None:
    wait_until(lambda: pending(server) == count)


def test_preferred_sizes_go_at_once_and_others_wait_for_more(client: Any, server: ServerProcess) -> None:
    load(client, preferred=[2, 6], delay_us=60_000_000)
    for rows in (2, 6, 7):
        assert Sent(client, rows, rows).answer().tolist() == [[2 * rows] * 4] * rows
    first = Sent(client, 1, 3)
    wait_pending(server, 1)
    second = Sent(client, 2, 4)  # more than the largest preferred size together
    assert first.answer().tolist() == [[2] * 4] * 3
    assert not second.is_done
    third = Sent(client, 3, 2)
    assert third.answer().tolist() == [[6] * 4] * 2
    assert second.answer().tolist() == [[4] * 4] * 4
    assert sizes(client) == {2: 1, 3: 1, 6: 2, 7: 1}


def test_requests_of_another_shape_end_a_batch(client: Any, server: ServerProcess) -> None:
    load(client, preferred=[4, 8], delay_us=60_000_000)
    narrow = Sent(client, 1, 1, 4)
    wait_pending(server, 1)
    wide = Sent(client, 2, 1, 6)
    assert narrow.answer().tolist() == [[2] * 4]
    assert not wide.is_done
    assert Sent(client, 3, 3, 6).answer().tolist() == [[6] * 6] * 3
    assert wide.answer().tolist() == [[4] * 6]


def test_what_was_queued_is_cut_at_preferred_sizes(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, preferred=[4, 6])
    with runs.held():
        begun = runs.begun
        sent = [Sent(client)]
        runs.wait_begun(begun + 1)
        sent += [Sent(client, value) for value in range(7)]
        wait_pending(server, 7)
    assert [one.answer()[0, 0] for one in sent[1:]] == [2 * value for value in range(7)]
    assert sizes(client) == {1: 2, 6: 1}


def test_a_request_larger_than_a_batch_is_refused_as_by_triton(client: Any) -> None:
    load(client, preferred=[4])
    status, text = fails(lambda: client.infer("gate", [tensor(triton, 1, 9)]))
    assert status == "INVALID_ARGUMENT"
    assert "inference request batch-size must be <= 8 for 'gate'" in text


def test_a_full_queue_refuses_at_once_and_counts_nothing(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, rows=4, preferred=[2], default_queue_policy=policy(4))
    with runs.held():
        begun = runs.begun
        running = Sent(client, 1, 4)
        runs.wait_begun(begun + 1)
        waiting = [Sent(client) for _ in range(4)]
        wait_pending(server, 4)
        refused = [Sent(client, request_id="late") for _ in range(2)]
        for one in refused:
            status, text = one.failure()
            assert status == "UNAVAILABLE"
            assert text.startswith("[request id: late] Exceeds maximum queue size")
            assert "max_queue_size" in text
        assert pending(server) == 4
    for one in (running, *waiting):
        one.answer()
    found = client.get_inference_statistics("gate").model_stats[0]
    assert (found.inference_count, found.inference_stats.fail.count) == (8, 0)
    assert not any(failures(server).values())


def test_a_late_request_is_told_before_the_busy_instance_is_free(
    client: Any, server: ServerProcess, runs: Runs
) -> None:
    # Those of priority 1 wait for any time.
    late = {"2": policy(0, SOON_US)}
    load(client, rows=1, priority_levels=2, default_priority_level=2, priority_queue_policy=late)
    with runs.held(), http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as rest:
        begun = runs.begun
        running = Sent(client, priority=1)
        runs.wait_begun(begun + 1)
        assert Sent(client, request_id="anything").failure() == EXPIRED
        with pytest.raises(http.InferenceServerException) as caught:
            rest.infer("gate", [tensor(http, 1)])
        assert (caught.value.status(), caught.value.message()) == ("503", EXPIRED[1])
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("gate", [tensor(triton, 1)])
        assert answers.get(timeout=120).message() == EXPIRED[1]
        client.stop_stream()
        assert not running.is_done
        assert runs.begun == begun + 1
    running.answer()
    wait_until(lambda: failures(server)["REJECTED"] == 3)
    wait_until(lambda: client.get_inference_statistics("gate").model_stats[0].inference_stats.fail.count == 3)
    assert pending(server) == 0


def test_a_request_may_say_a_shorter_timeout(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, rows=1, default_queue_policy=policy(0, HOUR_US, override=True))
    with runs.held(), http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as rest:
        begun = runs.begun
        running = Sent(client)
        runs.wait_begun(begun + 1)
        longer = [Sent(client, timeout=timeout) for timeout in (0, 2 * HOUR_US, 2**63 - 1)]
        assert Sent(client, timeout=SOON_US).failure() == EXPIRED
        with pytest.raises(http.InferenceServerException, match=EXPIRED[1]):
            rest.infer("gate", [tensor(http, 1)], timeout=SOON_US)
        called = Sent(client, model="caller", parameters={"inner_timeout": SOON_US, "inner_priority": 0})
        assert called.failure()[1].endswith(EXPIRED[1])
        assert not any(one.is_done for one in (running, *longer))
    for one in (running, *longer):
        one.answer()


def test_a_late_member_of_an_ensemble_is_told_with_its_name(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, rows=1, default_queue_policy=policy(0, HOUR_US, override=True))
    before = failures(server, "chain")
    with runs.held():
        begun = runs.begun
        running = Sent(client)
        runs.wait_begun(begun + 1)
        late = Sent(client, model="chain", timeout=SOON_US)
        assert late.failure() == ("UNAVAILABLE", "in ensemble 'chain', Request timeout expired")
    running.answer()
    wait_until(lambda: failures(server, "chain")["OTHER"] == before["OTHER"] + 1)
    wait_until(lambda: failures(server)["REJECTED"] == 1)  # since it was loaded
    assert failures(server, "chain")["REJECTED"] == before["REJECTED"]


def test_requests_of_higher_priority_run_first(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, rows=1, priority_levels=str(2**64 - 1), default_priority_level=str(2**32))
    with runs.held(), http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as rest:
        begun = runs.begun
        running = Sent(client)
        runs.wait_begun(begun + 1)
        lowest = Sent(client, priority=2**64 - 1)
        wait_pending(server, 1)
        default = Sent(client)
        wait_pending(server, 2)
        called = Sent(client, model="caller", parameters={"inner_timeout": 0, "inner_priority": 2})
        wait_pending(server, 3)
        chained = Sent(client, model="chain", priority=1)
        wait_pending(server, 4)
        left = [lowest, default, called, chained]
        runs.allow()
        running.answer()
        for one in (chained, called, default, lowest):
            runs.allow()
            one.answer("OUT" if one is chained else "y")
            left.remove(one)
            assert not any(other.is_done for other in left)
        with pytest.raises(http.InferenceServerException):
            rest.infer("gate", [tensor(http, 1)], parameters={"priority": "first"})


def test_a_delayed_request_runs_after_the_others(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, rows=1, default_queue_policy=policy(0, HOUR_US, "DELAY", override=True))
    with runs.held():
        begun = runs.begun
        running = Sent(client)
        runs.wait_begun(begun + 1)
        delayed = Sent(client, timeout=1)
        wait_pending(server, 1)
        other = Sent(client)
        wait_pending(server, 2)
        runs.allow(2)
        running.answer()
        other.answer()
        assert not delayed.is_done
    delayed.answer()


def test_a_request_whose_caller_leaves_is_not_run(client: Any, server: ServerProcess, runs: Runs) -> None:
    load(client, rows=1, preferred=[1], default_queue_policy=policy(0, HOUR_US))
    with runs.held():
        begun = runs.begun
        running = Sent(client)
        runs.wait_begun(begun + 1)
        leaving = Sent(client)
        wait_pending(server, 1)
        leaving.call.cancel()
        assert leaving.failure()[0] == "CANCELLED"
        client.is_server_live()
    running.answer()
    wait_until(lambda: failures(server)["CANCELED"] == 1)
    assert runs.begun == begun + 1
    assert sizes(client) == {1: 1}


def test_model_config_shows_the_queue_and_a_wrong_one_is_not_loaded(client: Any) -> None:
    load(client, preferred=[4], priority_levels=2, default_priority_level=2, default_queue_policy=policy(7, 5, "DELAY"))
    batching = client.get_model_config("gate").config.dynamic_batching
    assert list(batching.preferred_batch_size) == [4]
    assert (batching.priority_levels, batching.default_priority_level) == (2, 2)
    assert batching.default_queue_policy.timeout_action == 1
    status, text = fails(lambda: load(client, priority_levels=2))
    assert status == "INVALID_ARGUMENT"
    assert "default priority level must be in range [1, 2] for gate" in text
    assert client.is_model_ready("gate")


def test_a_model_with_a_queue_is_unloaded_once_its_requests_are_answered(
    client: Any, server: ServerProcess, runs: Runs
) -> None:
    load(client, preferred=[4], delay_us=60_000_000)
    waiting = Sent(client, 5)
    wait_pending(server, 1)
    load(client)
    assert waiting.answer().tolist() == [[10] * 4]


def test_answers_leave_in_the_order_of_their_requests(client: Any, folder: Path) -> None:
    def let(number: int) -> None:
        """Let one run end, and see it ended."""
        (folder / str(number)).touch()
        wait_until((folder / f"done{number}").exists)

    (first, failing, third) = sent = [Sent(client, number, model="turns") for number in (1, -2, 3)]
    let(3)
    let(-2)
    client.is_server_live()
    assert not any(one.is_done for one in sent)
    let(1)
    assert first.answer().tolist() == [[1] * 4]
    assert failing.failure()[1].endswith("no")
    assert third.answer().tolist() == [[3] * 4]
