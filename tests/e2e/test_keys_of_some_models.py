"""Keys for some models only: what is about all models is not theirs; regions of shared memory are each key's own."""

from __future__ import annotations

import os
import queue
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.access.tokens import bearer, digest
from tests.e2e.http import get, peer_of, post
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, run, running
from tests.optional import skip_without
from tests.waiting import wait_until

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")
shm = pytest.importorskip("tritonclient.utils.shared_memory")

skip_without("jwt")

GROUPS: Final = "[inference, metadata, logging, metrics, debug, shared-memory, trace]"
RULES: Final = f"""
anonymous: [health]
keys:
  - {{name: some, sha256: {digest("sk-some")}, groups: {GROUPS}, models: [mine]}}
  - {{name: every, sha256: {digest("sk-every")}, groups: {GROUPS}}}
  - {{name: third, sha256: {digest("sk-third")}, groups: [shared-memory]}}
"""
KEYS: Final = {"some": 10, "every": 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("server")
    for name in ("mine", "theirs"):
        add_model(models, name, versioned_model(1), 1)
    add_model(models, "broken", b"no graph", 1)
    rules = tmp_path_factory.mktemp("rules") / "access.yaml"
    rules.write_text(RULES)
    ports = ("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--debug-endpoints")
    with running(models, folder, [*ports, "--access-file", str(rules), "--allow-client-shm"]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def key_of(name: str) -> dict[str, str]:
    return {"authorization": bearer(f"sk-{name}").decode()}


def test_what_belongs_to_all_models_is_for_keys_of_all(server: ServerProcess) -> None:
    [warning] = [line for line in server.log.splitlines() if "keys[0] may use some models only" in line]
    assert "WARNING" in warning
    assert "debug, logging, metrics" in warning
    status = {"some": 403, "every": 200}
    for name in KEYS:
        field = f"Authorization: {key_of(name)['authorization']}"
        for port, path in (
            (server.rest_port, "/v2/logging"),
            (server.rest_port, "/metrics"),
            *((server.http_port, path) for path in ("/metrics", "/", "/status.json", "/graph.svg", "/debug/tasks")),
        ):
            with peer_of(port) as peer:
                answer = peer.ask(get(path, field))
            assert answer.status == (404 if path == "/graph.svg" and name == "every" else status[name]), path
            assert name == "every" or b"theirs" not in answer.body
        with peer_of(server.rest_port) as peer:
            assert peer.ask(post("/v2/logging", "{}", field)).status == status[name]
    with grpcclient.InferenceServerClient(server.address) as client:
        with pytest.raises(grpcclient.InferenceServerException, match="about all models"):
            client.update_log_settings({"log_info": False}, headers=key_of("some"))
        client.get_log_settings(headers=key_of("every"))


@pytest.mark.parametrize("via", ["HTTP", "REST"])
def test_health_names_no_models_of_others(server: ServerProcess, via: str) -> None:
    with peer_of(server.http_port if via == "HTTP" else server.rest_port) as peer:
        answer = peer.ask(get("/health/ready"))
    assert (answer.status, answer.body) == (503, b"not ready\n")


@pytest.mark.parametrize("via", ["gRPC", "REST"])
def test_who_switches_the_log_off_is_its_last_line(server: ServerProcess, via: str) -> None:
    is_rest = via == "REST"
    module, port = (httpclient, server.rest_port) if is_rest else (grpcclient, server.port)
    every = key_of("every")
    before = len(server.log.splitlines())
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        for _ in range(70):  # lines that are alike are limited, but for this one
            client.update_log_settings({"log_verbose_level": 0}, headers=every)
        client.update_trace_settings("mine", {"trace_rate": "7"}, headers=key_of("some"))
        others = rf"trace settings: trace_rate of 'mine' by key some \(.*, {via}\): done"
        wait_until(lambda: re.search(others, server.log))
        client.update_log_settings({"log_info": False}, headers=every)
        client.update_log_settings({"log_verbose_level": 0}, headers=every)
        told = rf"audit\W.*log settings: log_info by key every \(127\.0\.0\.1:\d+, {via}\): done; lines like this"
        wait_until(lambda: re.search(told, server.log))
        client.update_log_settings({"log_info": True}, headers=every)
    assert len(re.findall(told, server.log)) == 1
    assert len(server.log.splitlines()) - before < 140


def test_whoever_switches_the_log_off_and_on_for_ever_has_few_lines_and_hides_nobody(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "mine", versioned_model(1), 1)
    rules = tmp_path / "access.yaml"
    rules.write_text(RULES.replace("name: some", "name: other").replace(", models: [mine]", ""))
    with running(tmp_path / "models", tmp_path, ["--access-file", str(rules)]) as server:
        with grpcclient.InferenceServerClient(server.address) as client:
            for at in range(40):
                client.update_log_settings({"log_info": False}, headers=key_of("every"))
                if at < 39:
                    client.update_log_settings({"log_info": True}, headers=key_of("every"))
            client.update_log_settings({"log_level.audit": True}, headers=key_of("some"))
            client.update_log_settings({"log_level.audit": False}, headers=key_of("some"))
            told = r"log settings: log_level\.audit by key other \(.*\): done; lines like this"
            wait_until(lambda: re.search(told, server.log))
        assert server.stop() == 0
    by_every = r"(?:and (\d+) more .*)?log settings: log_info by key every \(.*\): done; lines like"
    lines = re.findall(by_every, server.log)
    assert sum(int(others or 1) for others in lines) == 40
    assert len(lines) < 40


def test_a_file_of_plain_keys_is_refused_without_showing_one(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "mine", versioned_model(1), 1)
    for text in ("sk-plain-1\nsk-plain-2\n", "sk-plain-1: x\n"):
        (tmp_path / "keys").write_text(text)
        ended = run("--model-repository", str(tmp_path / "models"), "--access-file", str(tmp_path / "keys"))
        assert ended.returncode == 2
        assert f"{tmp_path / 'keys'}: " in ended.stderr
        assert "sk-plain" not in ended.stdout + ended.stderr


class _Memory:
    """The objects of one caller, and the regions that it has registered of them under the names that all use."""

    def __init__(self, stack: ExitStack, client: Any, name: str, number: int) -> None:
        self.client, self.headers, self.number = client, key_of(name), number
        self.made = {}
        for region in ("in", "out"):
            self.made[region] = shm.create_shared_memory_region(region, f"/toutates-{os.getpid()}-{name}-{region}", 16)
            stack.callback(shm.destroy_shared_memory_region, self.made[region])
        shm.set_shared_memory_region(self.made["in"], [np.full((1, 4), number, np.int32)])
        for region in ("in", "out"):
            client.register_system_shared_memory(
                region, f"/toutates-{os.getpid()}-{name}-{region}", 16, headers=self.headers
            )
        stack.callback(client.unregister_system_shared_memory, headers=self.headers)

    def names(self) -> set[str]:
        status = self.client.get_system_shared_memory_status(headers=self.headers)
        return {one["name"] for one in status} if isinstance(status, list) else set(status.regions)

    def answers(self, infer: Callable[..., Any]) -> bool:
        """Whether a request, which has the same bytes whoever sends it, reads and writes this caller's objects."""
        shm.set_shared_memory_region(self.made["out"], [np.zeros((1, 4), np.int32)])
        infer(self.headers)
        written = shm.get_contents_as_numpy(self.made["out"], np.int32, [1, 4])
        return bool((written == self.number + 1).all())


def _request(module: Any) -> dict[str, Any]:
    given, asked = module.InferInput("INPUT", [1, 4], "INT32"), module.InferRequestedOutput("OUTPUT")
    given.set_shared_memory("in", 16)
    asked.set_shared_memory("out", 16)
    return {"model_name": "mine", "inputs": [given], "outputs": [asked]}


def _stream(client: Any, headers: dict[str, str]) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
    try:
        client.async_stream_infer(**_request(grpcclient))
        assert answers.get(timeout=120)[1] is None
    finally:
        client.stop_stream()


@pytest.mark.parametrize("transport", ["grpc", "rest", "stream"])
def test_regions_are_each_keys_own_names_included(server: ServerProcess, transport: str) -> None:
    is_rest = transport == "rest"
    module, port = (httpclient, server.rest_port) if is_rest else (grpcclient, server.port)
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client, ExitStack() as stack:

        def infer(headers: dict[str, str]) -> None:
            client.infer(**_request(module), headers=headers)

        ask = partial(_stream, client) if transport == "stream" else infer
        some, every = (_Memory(stack, client, name, number) for name, number in KEYS.items())
        for _ in range(3):  # read, then found by their bytes
            assert some.answers(ask)
            assert every.answers(ask)
        assert some.names() == every.names() == {"in", "out"}
        client.unregister_system_shared_memory(headers=some.headers)
        assert (some.names(), every.names()) == (set(), {"in", "out"})
        assert every.answers(ask)
        with pytest.raises(
            module.InferenceServerException, match=r"Unable to find shared memory region: 'in'"
        ) as error:
            infer(some.headers)
        assert "every" not in error.value.message()
        client.unregister_system_shared_memory("out", headers=some.headers)
        assert every.answers(ask)


def test_two_keys_that_take_all_that_they_get_leave_the_third_its_share(server: ServerProcess) -> None:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client, ExitStack() as stack:
        _Memory(stack, client, "every", 1)
        key, share = f"/toutates-{os.getpid()}-every-in", 512 // 2 // 3
        for name, most in (("every", 512 - 2 * share), ("some", share), ("third", share)):
            headers = key_of(name)
            stack.callback(client.unregister_system_shared_memory, headers=headers)
            for at in range(most - 2 * (name == "every")):
                client.register_system_shared_memory(f"more-{at}", key, 16, headers=headers)
            full = f"'last': this caller has {most}, of {most * 16} bytes, and there is no room for more now"
            with pytest.raises(httpclient.InferenceServerException, match=full):
                client.register_system_shared_memory("last", key, 16, headers=headers)
