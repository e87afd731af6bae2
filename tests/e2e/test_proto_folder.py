"""The folder proto/, from which clients in any language work, and what hands its files out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.docs_blocks import code_blocks
from tests.e2e.process import ServerProcess, run, running

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.name: path.read_bytes() for path in (ROOT / "proto").glob("*.proto")}
PAGE = "grpc-clients.md"
NODE_PACKAGES = ("@grpc/grpc-js", "@grpc/proto-loader")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    assert run("init", str(folder / "models")).returncode == 0
    with running(folder / "models", folder, ("--http-addr", "127.0.0.1:0")) as process:
        yield process
        assert process.stop() == 0


def test_a_server_hands_the_files_out(server: ServerProcess) -> None:
    assert len(FILES) == 4
    for name, text in FILES.items():
        url = f"http://127.0.0.1:{server.rest_port}/proto/{name}"
        answer = requests.get(url, timeout=120)
        assert (answer.status_code, answer.content) == (200, text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        head = requests.head(url, timeout=120)
        assert (head.status_code, int(head.headers["content-length"])) == (200, len(text))
        assert requests.post(url, timeout=120).status_code == 405
    for path in ("/proto/other.proto", "/proto/../pyproject.toml", "/proto/%2e%2e/pyproject.toml", "/proto/"):
        session, own = requests.Session(), requests.Request("GET", "http://here/").prepare()
        own.url = f"http://127.0.0.1:{server.rest_port}{path}"
        assert session.send(own, timeout=120).status_code == 404


def test_a_command_writes_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "proto"
    (tmp_path / "new").mkdir()
    for _ in range(2):
        ended = run("proto", str(folder))
        assert ended.returncode == 0
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
        assert ended.stdout.splitlines() == [str(folder / name) for name in FILES_IN_ORDER]
        (folder / "health.proto").write_text("older")
    (tmp_path / "file").write_text("")
    ended = run("proto", str(tmp_path / "file"))
    assert ended.returncode == 1
    assert str(tmp_path / "file") in ended.stderr


FILES_IN_ORDER = ("grpc_service.proto", "model_config.proto", "health.proto", "reflection.proto")

PYTHON = """
import struct, sys
import grpc, grpc_service_pb2, health_pb2, reflection_pb2

with grpc.insecure_channel(sys.argv[1]) as channel:
    infer = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        grpc_service_pb2.ModelInferRequest.SerializeToString,
        grpc_service_pb2.ModelInferResponse.FromString,
    )
    raw = struct.pack("<4f", 1, 2, 3, 4)
    request = grpc_service_pb2.ModelInferRequest(model_name="example", raw_input_contents=[raw])
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 4])
    answer = infer(request, timeout=120)
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    print(["%.3f" % value for value in struct.unpack("<4f", answer.raw_output_contents[0])])
    print(check(health_pb2.HealthCheckRequest(), timeout=120).status)
"""


def test_modules_are_generated_of_the_folder_alone(server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    folder = tmp_path / "proto"
    shutil.copytree(ROOT / "proto", folder)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", "--python_out=.", *FILES]
    subprocess.run(command, cwd=tmp_path, check=True)
    command = [sys.executable, "-c", PYTHON, f"127.0.0.1:{server.port}"]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout
    assert said.splitlines() == ["['0.032', '0.087', '0.237', '0.644']", "1"]


#: What npm says where there is no network, or where the registry is not to be used.
_NO_REGISTRY = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ERR_SOCKET_TIMEOUT",
    "E403",
)


@pytest.fixture(scope="module")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """Where grpc-js is: in the checkout, or in pytest's cache, into which npm puts it once."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    assert request.config.cache is not None
    for folder in (ROOT / "node_modules", cached := request.config.cache.mkdir("grpc-js") / "node_modules"):
        if all((folder / name / "package.json").exists() for name in NODE_PACKAGES):
            return folder
    npm = ["npm", "install", "--fetch-retries=1", "--no-audit", "--no-fund"]
    command = [*npm, "--prefix", str(cached.parent), *NODE_PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm's registry does not answer within a minute")
    if done.returncode and any(f"code {code}" in done.stderr for code in _NO_REGISTRY):
        pytest.skip("npm reaches no registry")
    assert done.returncode == 0, done.stderr
    return cached


def test_grpc_js_works_from_the_folder_as_the_page_says(
    server: ServerProcess, node_modules: Path, tmp_path: Path
) -> None:
    [code], [printed] = code_blocks(PAGE, "js"), code_blocks(PAGE, "text")
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    (tmp_path / "client.js").write_text(code.replace("localhost:8001", f"127.0.0.1:{server.port}"))
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    done = subprocess.run(
        ["node", "client.js"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


STREAM = """
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const files = ["grpc_service.proto", "health.proto", "reflection.proto"];
const all = grpc.loadPackageDefinition(loader.loadSync(files, { includeDirs: ["proto"], keepCase: true }));
const [address, secure] = [process.argv[2], grpc.credentials.createInsecure()];
const client = new all.inference.GRPCInferenceService(address, secure);
const stream = client.ModelStreamInfer();
let left = 3;
stream.on("data", (answer) => {
  console.log(answer.infer_response.id, answer.infer_response.raw_output_contents[0].length);
  if (--left === 0) stream.end();
});
stream.on("end", () => {
  client.ModelInfer({ model_name: "nobody" }, (error) => {
    console.log(error.code, error.details.includes("nobody"));
    client.close();
    const health = new all.grpc.health.v1.Health(address, secure);
    health.Check({}, (_, answer) => {
      console.log(answer.status);
      health.close();
    });
  });
});
for (const id of ["a", "b", "c"]) {
  stream.write({
    model_name: "example", id,
    inputs: [{ name: "INPUT", datatype: "FP32", shape: [1, 4], contents: { fp32_contents: [1, 2, 3, 4] } }],
  });
}
"""


def test_grpc_js_streams_sees_errors_and_checks_health(
    server: ServerProcess, node_modules: Path, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    (tmp_path / "client.js").write_text(STREAM)
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    command = ["node", "client.js", f"127.0.0.1:{server.port}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["a 16", "b 16", "c 16", "5 true", "1"], done.stderr


def test_the_folder_says_what_generators_of_other_languages_ask_for() -> None:
    # protoc-gen-go wants a path for each file; the classes of grpc-java are in the package of the file.
    packages = {"grpc_service": "./inference", "model_config": "./inference"}
    for name, text in FILES.items():
        assert text.count(b"\noption go_package = ") == 1
        stem = name.removesuffix(".proto")
        if stem in packages:
            assert f'option go_package = "{packages[stem]}";' in text.decode()
            assert b"\npackage inference;\n" in text
        assert not re.search(rb'^import "[^"]*/', text, re.MULTILINE)
