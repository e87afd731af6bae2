"""TorchServe's clients against a server: predictions, and the management API."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests
from onnx import TensorProto, helper

from tests.e2e.process import ServerProcess, running
from tests.graphs import model, tensor
from tests.torchserve_archives import contents, mar
from tests.waiting import wait_until

pytestmark = pytest.mark.long

FLAGS = ("--torchserve-api", "--http-addr", "127.0.0.1:0", "--torchserve-management-addr", "127.0.0.1:0")


def echo(path: Path, *, with_head: bool = True) -> None:
    """A model of ONNX that takes a body as it comes, and gives it back."""
    names = [("body", "result"), ("head", "result_head")][: 2 if with_head else 1]
    nodes = [helper.make_node("Identity", [given], [made]) for given, made in names]
    inputs, outputs = ([tensor(pair[at], ["n", 1], TensorProto.STRING) for pair in names] for at in range(2))
    (path / "1").mkdir(parents=True)
    (path / "1" / "model.onnx").write_bytes(model(nodes, inputs, outputs))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    echo(path / "echo")
    echo(path / "bare", with_head=False)
    (path / "numbers" / "1").mkdir(parents=True)
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = model([node], [tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    (path / "numbers" / "1" / "model.onnx").write_bytes(graph)
    return path


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("store")
    for version in ("1.0", "2.0"):
        mar(store / f"lengths-{version}.mar", contents(modelVersion=version))
    mar(store / "hostile.mar", {"../evil": b""})
    flags = ("--model-control-mode", "explicit", "--load-model", "*", "--torchserve-model-store", str(store))
    with running(repository, tmp_path_factory.mktemp("server"), (*FLAGS, *flags)) as process:
        yield process


def predictions(server: ServerProcess, path: str = "") -> str:
    return f"http://127.0.0.1:{server.rest_port}{path}"


def management(server: ServerProcess, path: str = "") -> str:
    return f"http://127.0.0.1:{server.management_port}{path}"


def error(answer: requests.Response) -> tuple[int, str, str]:
    """Status, type and message of a refusal, which is said twice."""
    document = answer.json()
    assert document["code"] == answer.status_code
    assert set(document) == {"code", "type", "message"}
    return answer.status_code, document["type"], document["message"]


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_ping(server: ServerProcess) -> None:
    answer = requests.get(predictions(server, "/ping"), timeout=120)
    assert (answer.status_code, answer.text) == (200, '{\n  "status": "Healthy"\n}\n')
    assert answer.headers["Pragma"] == "no-cache"
    assert answer.headers["Cache-Control"] == "no-cache; no-store, must-revalidate, private"
    assert answer.headers["Expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert len(answer.headers["x-request-id"]) == 36


@pytest.mark.quick
@pytest.mark.parametrize(
    "path", ["/predictions/echo", "/predictions/echo/1", "/predictions/echo/1.0", "/predictions/bare"]
)
@pytest.mark.parametrize("body", [b"", b"1", bytes(range(256)) * 1_000])
def test_a_body_comes_back_as_it_was(server: ServerProcess, path: str, body: bytes) -> None:
    with requests.Session() as session:
        for _ in range(3):  # by validation, and by what was remembered
            answer = session.post(predictions(server, path), body, timeout=120)
            assert (answer.status_code, answer.content) == (200, body)
            assert "content-type" not in answer.headers


def test_any_method_is_a_prediction(server: ServerProcess) -> None:
    for method in ("GET", "PUT", "POST"):
        answer = requests.request(method, predictions(server, "/predictions/echo?a=b"), data=b"x", timeout=120)
        assert answer.content == b"x"


def test_a_compressed_body_is_decompressed(server: ServerProcess) -> None:
    import gzip

    headers = {"Content-Encoding": "gzip"}
    answer = requests.post(
        predictions(server, "/predictions/echo"), gzip.compress(b"abc"), headers=headers, timeout=120
    )
    assert answer.content == b"abc"


@pytest.mark.quick
def test_refusals_have_the_words_of_torchserve(server: ServerProcess) -> None:
    def ask(path: str) -> tuple[int, str, str]:
        return error(requests.post(predictions(server, path), b"x", timeout=120))

    assert ask("/predictions/nobody") == (404, "ModelNotFoundException", "Model not found: nobody")
    assert ask("/predictions/echo/2.0") == (
        404,
        "ModelVersionNotFoundException",
        "Model version: 2.0 does not exist for model: echo",
    )
    code, kind, text = ask("/predictions/numbers")
    assert (code, kind) == (400, "BadRequestException")
    assert text.startswith("model 'numbers' does not take a body as it comes: it has an input 'x'")
    code, kind, text = ask("/wfpredict/flow")
    assert (code, kind) == (404, "ResourceNotFoundException")
    assert text.startswith("Workflows are not offered here")
    answer = requests.options(predictions(server, "/predictions/echo"), timeout=120)
    assert error(answer)[:2] == (405, "MethodNotAllowedException")


def test_what_a_head_says_twice_is_not_believed(server: ServerProcess) -> None:
    # This model gives the head back as the answer's, so the client can put there what a handler might.
    answer = requests.post(predictions(server, "/predictions/echo"), b"x", headers={"status": "200"}, timeout=120)
    assert error(answer)[:2] == (503, "InternalServerException")


def test_without_the_flag_there_is_nothing_of_it(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ("--http-addr", "127.0.0.1:0")) as process:
        for path in ("/ping", "/predictions/echo"):
            answer = requests.get(predictions(process, path), timeout=120)
            assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
        assert "management" not in process.log


def test_the_management_api_has_its_changes_made_in_all_processes(repository: Path, tmp_path: Path) -> None:
    store, models = tmp_path / "store", tmp_path / "models"
    store.mkdir()
    shutil.copytree(repository / "echo", models / "echo")
    mar(store / "lengths-1.0.mar", contents(modelVersion="1.0"))
    flags = (*FLAGS, "--processes", "2", "--model-control-mode", "explicit", "--torchserve-model-store", str(store))
    with running(models, tmp_path, (*flags, "--metrics-addr", "127.0.0.1:0")) as process:

        def statuses(path: str) -> set[int]:
            """Of connections to both processes, but for one time in half a million."""
            return {requests.post(predictions(process, path), b"abc", timeout=120).status_code for _ in range(20)}

        asked = "/models?url=lengths-1.0.mar&initial_workers=1&synchronous=true"
        assert ask(process, "POST", asked).status_code == 200
        assert statuses("/predictions/lengths") == {200}
        assert ask(process, "PUT", "/models/lengths/1.0/set-default").status_code == 200
        assert ask(process, "PUT", "/models/lengths?min_worker=0&synchronous=true").status_code == 200
        assert statuses("/predictions/lengths") == {503}
        # A process that is started later finds what was said before.
        page = f"http://127.0.0.1:{process.http_port}"
        processes = requests.get(f"{page}/status.json", timeout=120).json()["server"]["processes"]
        os.kill(processes[2]["pid"], signal.SIGKILL)
        restarted = 'toutates_process_restarts_total{process="1"} 1'
        wait_until(lambda: {restarted, "toutates_ready 1"} <= {*requests.get(f"{page}/metrics").text.splitlines()})
        assert statuses("/predictions/lengths") == {503}
        assert ask(process, "DELETE", "/models/lengths").status_code == 200
        assert statuses("/predictions/lengths") == {404}
        assert process.stop() == 0


# --- the management API ----------------------------------------------------------------------------------------------


def ask(server: ServerProcess, method: str, path: str, **more: Any) -> requests.Response:
    answer = requests.request(method, management(server, path), timeout=120, **more)
    assert answer.text.endswith("\n")
    return answer


def status(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["status"]


@pytest.mark.quick
def test_the_life_of_a_registered_model(server: ServerProcess, repository: Path) -> None:
    answer = ask(server, "POST", "/models", params={"url": "lengths-1.0.mar", "batch_size": 4})
    assert status(answer) == (
        200,
        'Model "lengths" Version: 1.0 registered with 0 initial workers. Use scale workers API to add workers for the '
        "model.",
    )
    assert (repository / "lengths" / "1" / "archive" / "handler.py").exists()
    refused = ask(server, "POST", "/models", json={"url": "lengths-1.0.mar"})
    assert error(refused) == (
        409,
        "ConflictStatusException",
        "Model version 1.0 is already registered for model lengths",
    )
    assert status(ask(server, "POST", "/models", json={"url": "lengths-2.0.mar", "batch_size": 4}))[0] == 200
    [described] = ask(server, "GET", "/models/lengths").json()
    assert (described["modelName"], described["modelVersion"]) == ("lengths", "1.0")
    assert (described["modelUrl"], described["batchSize"], described["workers"]) == ("lengths-1.0.mar", 4, [])
    both = ask(server, "GET", "/models/lengths/all").json()
    assert [one["modelVersion"] for one in both] == ["1.0", "2.0"]
    code, kind, text = error(requests.post(predictions(server, "/predictions/lengths/1.0"), b"x", timeout=120))
    assert (code, kind) == (503, "ServiceUnavailableException")
    assert text.startswith('Model "lengths" Version 1.0" has no worker to serve inference request.')
    assert error(ask(server, "DELETE", "/models/lengths/1.0")) == (
        403,
        "InvalidModelVersionException",
        "Cannot remove default version for model lengths",
    )
    assert status(ask(server, "PUT", "/models/lengths/2.0/set-default")) == (
        200,
        'Default version successfully updated for model "lengths" to "2.0"',
    )
    assert [one["modelVersion"] for one in ask(server, "GET", "/models/lengths").json()] == ["2.0"]
    assert status(ask(server, "DELETE", "/models/lengths/1.0")) == (200, 'Model "lengths" unregistered')
    assert [path.name for path in (repository / "lengths").iterdir() if path.is_dir()] == ["2"]
    assert status(ask(server, "DELETE", "/models/lengths")) == (200, 'Model "lengths" unregistered')
    assert not (repository / "lengths").exists()
    assert error(ask(server, "GET", "/models/lengths"))[0] == 404


def test_models_are_listed_in_pages(server: ServerProcess) -> None:
    first = ask(server, "GET", "/models?limit=2").json()
    assert first == {
        "nextPageToken": "2",
        "models": [{"modelName": "bare", "modelUrl": ""}, {"modelName": "echo", "modelUrl": ""}],
    }
    assert ask(server, "GET", "/models?limit=2&next_page_token=2").json() == {
        "models": [{"modelName": "numbers", "modelUrl": ""}]
    }


def test_a_model_that_is_no_archives_is_described(server: ServerProcess) -> None:
    [described] = ask(server, "GET", "/models/echo").json()
    assert (described["modelVersion"], len(described["workers"])) == ("1", 1)
    assert described["workers"][0]["status"] == "READY"
    assert described["jobQueueStatus"]["pendingRequests"] == 0


REFUSED: Sequence[tuple[str, str, int, str, str]] = [
    ("POST", "/models", 400, "BadRequestException", "Parameter url is required."),
    ("POST", "/models?url=nothing.mar", 404, "ModelNotFoundException", "Model not found at: nothing.mar"),
    (
        "POST",
        "/models?url=../secret.mar",
        404,
        "ModelNotFoundException",
        "Relative path is not allowed in url: ../secret.mar",
    ),
    ("POST", "/models?url=/etc/passwd", 404, "ModelNotFoundException", "Model not found at: /etc/passwd"),
    ("POST", "/models?url=flow.war", 400, "BadRequestException", "Workflows are not offered here"),
    ("POST", "/models?url=http://127.0.0.1:1/flow.war?x=1", 400, "BadRequestException", "Workflows are not offered"),
    ("POST", "/workflows?url=flow.war", 404, "ResourceNotFoundException", "Workflows are not offered here"),
    ("GET", "/workflows/flow", 404, "ResourceNotFoundException", "join them by an ensemble"),
    ("POST", "/models?url=.", 404, "ModelNotFoundException", "Model not found at: ."),
    (
        "POST",
        "/models?url=http://127.0.0.1:1/m.mar",
        404,
        "ModelNotFoundException",
        "Given URL http://127.0.0.1:1/m.mar does not match any allowed URL(s)",
    ),
    (
        "POST",
        "/models?url=file:///etc/passwd",
        404,
        "ModelNotFoundException",
        "Given URL file:///etc/passwd does not match any allowed URL(s)",
    ),
    ("POST", "/models?url=hostile.mar", 400, "BadRequestException", "leaves the archive's directory"),
    ("POST", "/models?url=lengths-1.0.mar&batch_size=x", 400, "BadRequestException", "Parameter batch_size"),
    ("POST", "/models?url=lengths-1.0.mar&model_name=../x", 400, "BadRequestException", "the model's name '../x'"),
    ("POST", "/models?url=lengths-1.0.mar&model_name=echo", 400, "BadRequestException", "was not made of an archive"),
    ("PUT", "/models/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
    ("PUT", "/models/..%2fx", 404, "ModelNotFoundException", "Model not found: ../x"),
    ("PUT", "/models/echo", 400, "BadRequestException", "model 'echo' is a model that was not made of an archive"),
    ("PUT", "/models/x?min_worker=2&max_worker=1", 400, "BadRequestException", "max_worker cannot be less than"),
    ("PUT", "/models/x?min_worker=100000", 400, "BadRequestException", "min_worker is a number from 0 to 256."),
    ("DELETE", "/models/echo", 400, "BadRequestException", "model 'echo' is a model that was not made of an archive"),
    ("GET", "/models/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
    (
        "GET",
        "/models/echo/9.0",
        404,
        "ModelVersionNotFoundException",
        "Model version: 9.0 does not exist for model: echo",
    ),
    ("PATCH", "/models", 405, "MethodNotAllowedException", "Requested method is not allowed"),
    ("GET", "/nothing", 404, "ResourceNotFoundException", "Requested resource is not found"),
    ("GET", "/v2", 404, "ResourceNotFoundException", "Requested resource is not found"),
]


@pytest.mark.parametrize(
    ("method", "path", "code", "kind", "text"), REFUSED, ids=[f"{one[0]} {one[1]}" for one in REFUSED]
)
def test_what_cannot_be_is_refused(
    server: ServerProcess, repository: Path, method: str, path: str, code: int, kind: str, text: str
) -> None:
    refused = error(ask(server, method, path))
    assert refused[:2] == (code, kind)
    assert text in refused[2]
    assert sorted(one.name for one in repository.iterdir()) == ["bare", "echo", "numbers"]


@pytest.mark.quick
@pytest.mark.parametrize("field", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_web_pages_are_refused(server: ServerProcess, field: dict[str, str]) -> None:
    refused = ask(server, "POST", "/models?url=lengths-1.0.mar", headers=field)
    assert error(refused)[:2] == (403, "AccessDeniedException")


def test_a_body_that_is_no_json_is_refused(server: ServerProcess) -> None:
    assert error(ask(server, "POST", "/models", data=b"{"))[:2] == (400, "BadRequestException")


def test_models_that_are_not_changed_by_request(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, FLAGS) as process:
        for method, path in (("POST", "/models?url=x"), ("PUT", "/models/echo"), ("DELETE", "/models/echo")):
            answer = ask(process, method, path)
            assert error(answer)[:2] == (405, "MethodNotAllowedException")
            assert answer.headers["Allow"] == "GET, HEAD"
        assert ask(process, "PUT", "/models/echo/1/set-default").headers["Allow"] == ""
        assert ask(process, "PATCH", "/models").headers["Allow"] == "GET, HEAD, POST"
        assert len(ask(process, "GET", "/models").json()["models"]) == 3


#: URLs that only look as if they began with {root}/archives/.
OUT_OF_ARCHIVES: Sequence[str] = [
    "{root}/elsewhere.mar",
    "{root}/archives/../elsewhere.mar",
    "{root}/archives/%2e%2e/elsewhere.mar",
    "{root}/archives/x/.%2E/%2e./elsewhere.mar",
    "{root}/archives/%252e%252e/elsewhere.mar",
    "{root}/archives/..%2felsewhere.mar",
    "{root}/archives/..;/elsewhere.mar",
    "{root}/archives/..\\elsewhere.mar",
    "{root}/archives%2fx.mar",
    "{root}/archives/x.mar\r\nHost: elsewhere",
    "{root}/archives/x y.mar",
    "http://me@{host}/archives/x.mar",
    "{root}@127.0.0.1:1/archives/x.mar",
    "//{host}/archives/x.mar",
    "https://{host}/archives/x.mar",
]


class Archives(BaseHTTPRequestHandler):
    """Serves an archive, and sends clients elsewhere."""

    data = b""
    away: Mapping[str, str] = {
        "/archives/away.mar": "/elsewhere.mar",
        "/archives/up.mar": "/archives/x/%2e%2e/%2E./elsewhere.mar",
        "/archives/moved.mar": "/archives/here/lengths.mar",
    }
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path in self.away:
            self.send_response(302)
            self.send_header("Location", self.away[self.path])
            self.end_headers()
            return
        if self.path == "/archives/odd.mar":
            self.wfile.write(b"HTTP/1.1 none of them\r\n\r\n")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.data)

    def log_message(self, *_: Any) -> None:
        pass


def test_an_archive_is_downloaded_from_where_it_may_and_a_secret_is_asked_for(tmp_path: Path) -> None:
    Archives.data = mar(tmp_path / "a.mar").read_bytes()
    (tmp_path / "models").mkdir()
    with HTTPServer(("127.0.0.1", 0), Archives) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{web.server_port}"
        flags = ("--model-control-mode", "explicit", "--torchserve-allowed-urls", f"{root}/archives/")
        secret = ("--http-restricted-api", "model-repository,inference:admin=letmein")
        with running(tmp_path / "models", tmp_path, (*FLAGS, *flags, *secret)) as process:
            url = f"{root}/archives/lengths.mar"
            assert error(ask(process, "POST", "/models", params={"url": url}))[:2] == (403, "AccessDeniedException")
            assert error(requests.post(predictions(process, "/predictions/m"), timeout=120))[0] == 403
            assert requests.get(predictions(process, "/ping"), timeout=120).status_code == 200

            def register(url: str) -> requests.Response:
                return ask(process, "POST", "/models", json={"url": url}, headers={"admin": "letmein"})

            for way in OUT_OF_ARCHIVES:
                assert error(register(way.format(root=root, host=root.removeprefix("http://"))))[:2] == (
                    404,
                    "ModelNotFoundException",
                ), way
            for name in ("away", "up", "odd"):
                assert error(register(f"{root}/archives/{name}.mar")) == (
                    400,
                    "DownloadArchiveException",
                    f"Failed to download archive from: {root}/archives/{name}.mar",
                )
            assert all(path.startswith("/archives/") and ".." not in path for path in Archives.asked), Archives.asked
            moved = root.replace("http", "HTTP") + "/archives/moved.mar"
            assert status(register(moved))[0] == 200
            assert status(ask(process, "DELETE", "/models/lengths", headers={"admin": "letmein"}))[0] == 200
            assert status(register(url))[0] == 200
            path, headers = "/models/lengths", {"admin": "letmein"}
            [described] = ask(process, "GET", path, headers=headers).json()
            assert described["modelUrl"] == url
            assert status(ask(process, "DELETE", path, headers=headers))[0] == 200
        web.shutdown()
    assert list((tmp_path / "models").iterdir()) == []
