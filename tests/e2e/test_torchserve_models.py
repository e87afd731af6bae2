"""Handlers of TorchServe, from an archive to a client: they are imported, and run as Python models."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.process import ServerProcess, run, running
from tests.torchserve_archives import HANDLER, contents, mar
from tests.waiting import wait_until

pytestmark = pytest.mark.long

FLAGS = ("--torchserve-api", "--http-addr", "127.0.0.1:0", "--torchserve-management-addr", "127.0.0.1:0")

FUNCTION = """
import os

def handle(data, context):
    if data is None:
        return None
    answers = []
    for at, row in enumerate(data):
        context.set_response_content_type(at, "text/plain")
        text = str(row["body"])
        if text == "exit":
            os._exit(3)
        if text == "teapot":
            context.set_response_status(418, "I'm a teapot", at)
        answers.append(f"{text} {context.get_request_header(at, 'x-mine')} {context.get_request_id(at)}")
    return answers
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    settings = {"model-config.yaml": "batchSize: 4\nscale: 10\n"}
    for version in ("1.0", "2.0"):
        mar(path / f"lengths-{version}.mar", contents(files=settings, modelVersion=version))
    more = {"model-config.yaml": "minWorkers: 2\n"}
    mar(path / "eager.mar", contents(files=more, modelName="eager"))
    mar(path / "broken.mar", contents(files={"handler.py": "raise ValueError('no')"}, modelName="broken"))
    return path


class SlowSource(HTTPServer):
    """Sends an archive once it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Slow)
        self.asked, self.may_go_on = threading.Event(), threading.Event()
        self.content = b""


class _Slow(BaseHTTPRequestHandler):
    server: SlowSource

    def do_GET(self) -> None:
        self.server.asked.set()
        self.server.may_go_on.wait(120)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def slow() -> Iterator[SlowSource]:
    with SlowSource() as source:
        yield source


@pytest.fixture(scope="module")
def server(store: Path, slow: SlowSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    function = tmp_path_factory.mktemp("archives") / "words.mar"
    mar(function, contents(files={"handler.py": FUNCTION}, modelName="words"))
    for archive in (store / "lengths-1.0.mar", store / "lengths-2.0.mar", function):
        assert run("import", str(archive), "--output", str(repository)).returncode == 0
    flags = ("--model-control-mode", "explicit", "--load-model", "*", "--torchserve-model-store", str(store))
    urls = ("--torchserve-allowed-urls", f"http://127.0.0.1:{slow.server_port}/")
    with running(repository, tmp_path_factory.mktemp("server"), (*FLAGS, *flags, *urls)) as process:
        yield process


def post(server: ServerProcess, path: str, data: Any = b"", **more: Any) -> requests.Response:
    return requests.post(f"http://127.0.0.1:{server.rest_port}/predictions/{path}", data, timeout=120, **more)


def manage(server: ServerProcess, method: str, path: str) -> requests.Response:
    return requests.request(method, f"http://127.0.0.1:{server.management_port}{path}", timeout=120)


@pytest.mark.quick
def test_a_handler_answers_bodies_forms_and_json(server: ServerProcess) -> None:
    assert post(server, "lengths", b"1234").json() == {"length": 40, "type": "bytearray"}
    form = post(server, "lengths", files={"data": ("a.bin", bytes(7), "application/octet-stream")})
    assert form.json() == {"length": 70, "type": "bytearray"}
    assert post(server, "lengths", json=[1, 2]).json() == {"length": 20, "type": "list"}
    text = post(server, "lengths/2.0", "ab", headers={"Content-Type": "text/plain"})
    assert text.json() == {"length": 20, "type": "str"}
    assert text.headers["x-rows"] == "1"
    assert text.text == '{\n  "length": 20,\n  "type": "str"\n}'


def test_what_a_handler_raises_is_a_status(server: ServerProcess) -> None:
    plain = {"Content-Type": "text/plain"}

    def refused(text: str) -> tuple[int, dict[str, Any]]:
        answer = post(server, "lengths", text, headers=plain)
        return answer.status_code, answer.json()

    assert refused("raise") == (503, {"code": 503, "type": "InternalServerException", "message": "Prediction failed"})
    assert refused("refuse") == (422, {"code": 422, "type": "InternalServerException", "message": "bad"})
    broken = post(server, "lengths", b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["type"]) == (400, "BadRequestException")
    assert post(server, "lengths", b"1").status_code == 200


def test_a_function_sees_the_head_and_sets_the_answers(server: ServerProcess) -> None:
    plain = {"Content-Type": "text/plain", "X-Mine": "here"}
    answer = post(server, "words", "hello", headers=plain)
    assert answer.headers["content-type"] == "text/plain"
    assert answer.text == f"hello here {answer.headers['x-request-id']}"
    assert post(server, "words", "teapot", headers=plain).status_code == 418


def test_many_requests_at_once_get_their_own_answers(server: ServerProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        sizes = list(range(1, 65))
        answers = list(pool.map(lambda size: post(server, "lengths", bytes(size)).json()["length"], sizes))
    assert answers == [10 * size for size in sizes]


def test_a_process_that_ends_is_a_worker_that_died(server: ServerProcess) -> None:
    plain = {"Content-Type": "text/plain"}
    died = post(server, "words", "exit", headers=plain)
    assert (died.status_code, died.json()["message"]) == (500, "Worker died.")
    assert post(server, "words", "hello", headers=plain).status_code == 200
    assert post(server, "lengths", b"1").status_code == 200


def test_tritons_clients_ask_the_same_model(server: ServerProcess) -> None:
    def infer(body: str, head: str) -> requests.Response:
        inputs: Any = [
            {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [text]}
            for name, text in (("body", body), ("head", head))
        ]
        url = f"http://127.0.0.1:{server.rest_port}/v2/models/lengths/infer"
        return requests.post(url, json={"inputs": inputs}, timeout=120)

    outputs = {one["name"]: one["data"][0] for one in infer("1234", "").json()["outputs"]}
    assert json.loads(outputs["result"]) == {"length": 40, "type": "bytearray"}
    assert json.loads(outputs["result_head"])["status"] == 200
    plain = json.dumps({"content-type": "text/plain"})
    outputs = {one["name"]: one["data"][0] for one in infer("refuse", plain).json()["outputs"]}
    assert json.loads(outputs["result_head"])["status"] == 422


def test_workers_are_scaled_and_versions_come_and_go(server: ServerProcess, store: Path) -> None:
    def workers(path: str = "/models/lengths") -> list[int]:
        return [len(one["workers"]) for one in manage(server, "GET", path).json()]

    assert workers("/models/lengths/all") == [1, 1]
    scaled = manage(server, "PUT", "/models/lengths?min_worker=2&synchronous=true")
    assert (scaled.status_code, scaled.json()) == (200, {"status": "Workers scaled to 2 for model: lengths"})
    assert workers("/models/lengths/all") == [2, 2]
    none = manage(server, "PUT", "/models/lengths?min_worker=0&synchronous=true")
    assert none.status_code == 200
    assert workers() == [0]
    refused = post(server, "lengths", b"1")
    assert (refused.status_code, refused.json()["type"]) == (503, "ServiceUnavailableException")
    assert refused.json()["message"].startswith('Model "lengths" has no worker to serve inference request.')
    later = manage(server, "PUT", "/models/lengths?min_worker=1")
    assert (later.status_code, later.json()) == (202, {"status": "Processing worker updates..."})
    assert manage(server, "PUT", "/models/lengths?min_worker=1&synchronous=true").status_code == 200
    assert post(server, "lengths", b"1").status_code == 200
    assert manage(server, "PUT", "/models/lengths/2.0/set-default").status_code == 200
    gone = manage(server, "DELETE", "/models/lengths/1.0")
    assert (gone.status_code, gone.json()) == (200, {"status": 'Model "lengths" unregistered'})
    assert post(server, "lengths", b"1").status_code == 200
    assert post(server, "lengths/1.0", b"1").json()["type"] == "ModelVersionNotFoundException"
    again = manage(server, "POST", "/models?url=lengths-1.0.mar&initial_workers=1")
    assert again.json() == {"status": 'Model "lengths" Version: 1.0 registered with 1 initial workers'}
    assert post(server, "lengths/1.0", b"1").status_code == 200


def test_a_slow_download_holds_nobody_up(server: ServerProcess, store: Path, slow: SlowSource) -> None:
    slow.content = mar(store / "slow.mar", contents(modelName="slow")).read_bytes()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(slow.handle_request)
        url = f"http://127.0.0.1:{slow.server_port}/slow.mar"
        registered = pool.submit(manage, server, "POST", f"/models?url={url}&initial_workers=1")
        try:
            assert slow.asked.wait(120)
            mar(store / "quick.mar", contents(modelName="quick"))
            assert manage(server, "POST", "/models?url=quick.mar").status_code == 200
            assert manage(server, "DELETE", "/models/quick").status_code == 200
        finally:
            slow.may_go_on.set()
        assert registered.result().json() == {"status": 'Model "slow" Version: 1.0 registered with 1 initial workers'}


def test_forty_slow_downloads_hold_up_no_listing_and_no_deletion(
    server: ServerProcess, store: Path, slow: SlowSource
) -> None:
    mar(store / "beside.mar", contents(modelName="beside"))
    url = f"http://127.0.0.1:{slow.server_port}/slow.mar"
    refused = threading.Event()

    def register(number: int) -> int:
        status = manage(server, "POST", f"/models?url={url}&model_name=slow-{number}").status_code
        if status == 503:
            refused.set()
        return status

    with ThreadPoolExecutor(50) as pool:
        statuses = pool.map(register, range(45))
        try:
            assert refused.wait(120)
            assert manage(server, "GET", "/models").status_code == 200
            assert manage(server, "POST", "/models?url=beside.mar").status_code == 200
            assert manage(server, "DELETE", "/models/beside").status_code == 200
        finally:
            slow.server_close()  # so that those that are held get no connection
        assert set(statuses) == {400, 503}


def test_two_registrations_of_one_model_take_turns(server: ServerProcess, store: Path) -> None:
    for version in ("1.0", "2.0"):
        mar(store / f"twice-{version}.mar", contents(modelName="twice", modelVersion=version))
    paths = [f"/models?url=twice-{version}.mar&initial_workers=1" for version in ("1.0", "2.0", "1.0", "2.0")]
    with ThreadPoolExecutor(4) as pool:
        statuses = sorted(one.status_code for one in pool.map(partial(manage, server, "POST"), paths))
    assert statuses == [200, 200, 409, 409]
    assert len(manage(server, "GET", "/models/twice/all").json()) == 2
    assert manage(server, "DELETE", "/models/twice").status_code == 200


def test_many_registrations_of_a_model_that_is_loading_hold_up_no_other(server: ServerProcess, store: Path) -> None:
    may_load = store / "may-load"
    waiting = f"import os, time\nwhile not os.path.exists({str(may_load)!r}):\n    time.sleep(0.01)\n{HANDLER}"
    mar(store / "held.mar", contents(files={"handler.py": waiting}, modelName="held"))
    mar(store / "other.mar", contents(modelName="other"))
    begun = manage(server, "POST", "/models?url=held.mar&initial_workers=1&synchronous=false")
    assert begun.status_code == 202
    refused = threading.Event()

    def register(number: int) -> int:
        status = manage(server, "POST", "/models?url=held.mar").status_code
        if status == 503:
            refused.set()
        return status

    with ThreadPoolExecutor(20) as pool:
        statuses = pool.map(register, range(20))
        try:
            assert refused.wait(120)
            assert manage(server, "POST", "/models?url=other.mar").status_code == 200
            assert manage(server, "DELETE", "/models/other").status_code == 200
        finally:
            may_load.touch()
        assert set(statuses) == {409, 503}
    assert manage(server, "DELETE", "/models/held").status_code == 200


def test_a_handler_of_newlines_is_registered_while_others_are_served(server: ServerProcess, store: Path) -> None:
    mar(store / "blank.mar", contents(files={"handler.py": "\n" * 1_000_000 + "import ts.nowhere"}, modelName="blank"))
    with ThreadPoolExecutor(1) as pool:
        registered = pool.submit(manage, server, "POST", "/models?url=blank.mar")
        while not registered.done():
            assert post(server, "lengths", b"1").status_code == 200
    assert registered.result().status_code == 200
    wait_until(lambda: "the handler imports ts.nowhere" in server.log)
    assert manage(server, "DELETE", "/models/blank").status_code == 200


def test_a_handler_that_cannot_be_loaded_is_not_registered(server: ServerProcess) -> None:
    failed = manage(server, "POST", "/models?url=broken.mar&initial_workers=1")
    assert (failed.status_code, failed.json()["message"]) == (
        500,
        "Failed to start workers for model broken version: 1.0",
    )
    assert manage(server, "GET", "/models/broken").status_code == 404


def test_the_archive_says_how_many_workers_there_are_to_begin_with(server: ServerProcess) -> None:
    registered = manage(server, "POST", "/models?url=eager.mar")
    assert registered.json() == {"status": 'Model "eager" Version: 1.0 registered with 2 initial workers'}
    assert post(server, "eager", b"12").json()["length"] == 2
    assert manage(server, "DELETE", "/models/eager").status_code == 200
    assert post(server, "eager", b"12").status_code == 404
