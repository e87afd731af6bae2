"""Processes of Python models that die while they have nothing to do."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import ServerProcess, is_alive, running
from tests.e2e.python_models import add_model
from tests.waiting import wait_until

METHODS = """
def initialize(self, args):
    if os.path.exists(%r):
        raise ValueError("not now")
    self.child = os.fork() if args["model_name"] == "forking" else 0
    if args["model_name"] == "forking" and not self.child:
        time.sleep(1000)

def execute(self, requests):
    return [answer(request, np.full_like(input_of(request), os.getpid())) for request in requests]
"""


@pytest.fixture(scope="module")
def stop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While there is a file of this name, no process can be initialized."""
    return tmp_path_factory.mktemp("stop") / "now"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, stop: Path) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model(root, "one", METHODS % str(stop))
    add_model(root, "two", METHODS % str(stop), more="instance_group { count: 2 }")
    add_model(root, "forking", METHODS % str(stop))
    with running(root, tmp_path_factory.mktemp("log"), flags=["--http-addr", "127.0.0.1:0"]) as process:
        pid = ask(process, "forking")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children
        yield process
        # A server that is killed has no time to end what its models have forked.
        children += Path(f"/proc/{(pid := ask(process, 'forking'))}/task/{pid}/children").read_text().split()
        assert process.stop() == 0
        wait_until(lambda: not any(is_alive(int(child)) for child in children))


def get(server: ServerProcess, path: str, said: object = None) -> tuple[int, str]:
    data = None if said is None else json.dumps(said).encode()
    try:
        url = f"http://127.0.0.1:{server.rest_port}/v2/models/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(server: ServerProcess, model: str) -> int:
    """The number of the process that answers."""
    rows = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}
    status, text = get(server, f"{model}/infer", {"inputs": [rows]})
    assert status == 200, text
    return int(json.loads(text)["outputs"][0]["data"][0])


def is_ready(server: ServerProcess, model: str) -> bool:
    return get(server, f"{model}/ready")[0] == 200


@pytest.mark.parametrize("model", ["one", "forking"])
def test_no_request_fails_for_a_process_that_died_before(server: ServerProcess, model: str) -> None:
    pid = ask(server, model)
    os.kill(pid, signal.SIGKILL)
    assert ask(server, model) != pid


def starts_of(server: ServerProcess, model: str) -> list[str]:
    """What the log says of another process of a model; of other models it may say so a moment later."""
    return [line for line in server.log.splitlines() if f" {model}_" in line and "its process is started again" in line]


def test_it_is_started_again_before_anybody_asks(server: ServerProcess) -> None:
    pid = ask(server, "two")
    assert not starts_of(server, "two")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(starts_of(server, "two")) == 1)
    assert is_ready(server, "two")  # by the other instance
    for _ in range(10):
        assert ask(server, "two") != pid


def test_a_model_without_any_process_is_not_ready_until_it_has_one(server: ServerProcess, stop: Path) -> None:
    pid = ask(server, "one")
    assert is_ready(server, "one")
    stop.touch()
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_ready(server, "one"))
        wait_until(lambda: "ValueError: not now" in server.log)
        assert not is_ready(server, "one")
        status, text = get(server, "one/infer", {"inputs": []})
        assert status != 200, text
    finally:
        stop.unlink()
    # Nobody asks it for anything.
    wait_until(lambda: is_ready(server, "one"))
    ask(server, "one")
