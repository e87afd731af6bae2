"""What `make dist` has built: what is in it, and that it serves where nothing else is installed."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest

from release.make_dist import build_time
from tests.triton_repository import negative
from tests.waiting import wait_until

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
PYTHONS: Final = os.environ.get("TOUTATES_PYTHONS", "python3").split()
#: So that pip and the server find nothing of this checkout.
CLEAN: Final = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TOUTATES_"))}


def only(pattern: str) -> Path:
    [path] = DIST.glob(pattern)
    return path


@cache
def in_wheel() -> frozenset[str]:
    with zipfile.ZipFile(only("*.whl")) as archive:
        return frozenset(archive.namelist())


def here(folder: str) -> set[str]:
    """The files of a folder of the checkout, but for compiled modules."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in paths}


@cache
def metadata() -> Message:
    [name] = (name for name in in_wheel() if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(only("*.whl")) as archive:
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else() -> None:
    package = {name for name in in_wheel() if ".dist-info/" not in name}
    assert package == here("toutates") | {f"toutates/{name}" for name in here("proto")}
    assert {"toutates/py.typed", "toutates/observe/status/status.html", "toutates/server/docs.html"} <= package
    assert "toutates/proto/grpc_service.proto" in package


def test_the_wheel_has_the_licenses() -> None:
    with zipfile.ZipFile(only("*.whl")) as archive:
        for name in ("LICENSE", "NOTICE", "licenses/triton-inference-server.txt"):
            [path] = (found for found in in_wheel() if found.endswith(f".dist-info/licenses/{name}"))
            assert archive.read(path) == (ROOT / name).read_bytes()
    assert metadata()["License-Expression"] == "Apache-2.0"


def test_names_metadata_and_bill_of_materials_agree_on_the_version() -> None:
    version = metadata()["Version"]
    assert only("*.whl").name == f"toutates-{version}-py3-none-any.whl"
    assert only("*.tar.gz").name == f"toutates-{version}.tar.gz"
    bill = json.loads(only("*.cdx.json").read_text())
    assert only("*.cdx.json").name == f"toutates-{version}.cdx.json"
    assert bill["metadata"]["component"]["version"] == version


def test_the_sdist_has_what_a_test_run_needs() -> None:
    with tarfile.open(only("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "PKG-INFO", "Makefile", "NOTICE", "CHANGELOG.md", "tests/conftest.py"} <= names
    assert here("toutates") <= names


def test_the_bill_of_materials_lists_what_is_installed_with_its_license() -> None:
    bill = json.loads(only("*.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    components = {one["name"].lower().replace("_", "-"): one for one in bill["components"]}
    assert {"numpy", "onnxruntime", "trio", "tokenizers", "protobuf"} <= set(components)
    assert "pytest" not in components
    without = [name for name, one in components.items() if not one.get("licenses")]
    assert len(without) <= len(components) // 10, f"the metadata of few has none: {without}"
    depends = {one["ref"]: one["dependsOn"] for one in bill["dependencies"] if "dependsOn" in one}
    direct = {ref.partition("==")[0].lower() for ref in depends[bill["metadata"]["component"]["bom-ref"]]}
    assert {"numpy", "onnxruntime", "trio"} <= direct
    assert "flask" not in direct, "which only an extra's package needs"


def test_what_is_built_again_has_the_same_bytes(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        env=os.environ | {"SOURCE_DATE_EPOCH": str(build_time(os.environ))},
        check=True,
    )
    for pattern in ("*.whl", "*.tar.gz"):
        [again] = tmp_path.glob(pattern)
        assert again.read_bytes() == only(pattern).read_bytes()


def test_a_copy_without_git_can_be_built(tmp_path: Path) -> None:
    """As `docker build` does it."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("licenses", "proto", "toutates"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))

    def built(environment: Mapping[str, str]) -> str:
        out = tmp_path / "out"
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(tmp_path)],
            env=os.environ | environment,
            check=True,
        )
        [wheel] = out.iterdir()
        wheel.unlink()
        return wheel.name.split("-")[1]

    assert built({}) == "0.1.0.dev0"
    assert built({"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_TOUTATES": "2.3.4"}) == "2.3.4"


# --- in an empty environment -----------------------------------------------------------------------------------------


def interpreter(name: str) -> str | None:
    """The Python of this name on PATH, or pyenv's of that version, if it runs."""
    version = name.rpartition("python")[2]
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*"))
    for path in (shutil.which(name), *(str(one / "bin" / name) for one in pyenv)):
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.fixture(scope="module", params=PYTHONS)
def binaries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel with the extra cpu, and nothing else."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"{request.param} is not here")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([python, "-m", "venv", str(folder)], env=CLEAN, check=True)
    wheel = only("*.whl")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--only-binary", ":all:", f"{wheel}[cpu]"], env=CLEAN, cwd=folder, check=True)
    return folder / "bin"


@contextmanager
def serving(binaries: Path, folder: Path, *arguments: str) -> Iterator[dict[str, str]]:
    """The addresses of a server by what it serves there. It ends with the block, and well."""
    anywhere = [word for name in ("grpc", "http", "metrics") for word in (f"--{name}-addr", "127.0.0.1:0")]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(binaries / "toutates"), *arguments, *anywhere], stdout=output, stderr=output, env=CLEAN, cwd=folder
        )
    try:
        wait_until(lambda: process.poll() is not None or "serving gRPC on" in log.read_text())
        found = re.findall(r"(gRPC|HTTP|status page) on (?:http://)?(127\.0\.0\.1:\d+)", log.read_text())
        assert dict(found).keys() == {"gRPC", "HTTP", "status page"}, log.read_text()
        yield dict(found)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
        assert " ERROR " not in log.read_text()
    finally:
        process.kill()
        process.wait(120)


def read(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=120) as response:
        return response.read().decode()


def test_the_installed_wheel_serves(binaries: Path, tmp_path: Path) -> None:
    onnx.save(negative(), tmp_path / "negative.onnx")
    said = subprocess.run([str(binaries / "toutates"), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"toutates {metadata()['Version']}\n"
    with serving(binaries, tmp_path, "serve", "negative.onnx") as address:
        url = f"http://{address['HTTP']}"
        tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        answer = json.loads(read(f"{url}/v2/models/negative/infer", {"inputs": [tensor]}))
        assert answer["outputs"][0]["data"] == [-1, -2, -3, -4]
        assert "/v2/models/negative/infer" in json.loads(read(f"{url}/openapi.json"))["paths"]
        assert "<title>" in read(f"http://{address['status page']}/")
        assert "nv_inference_request_success" in read(f"http://{address['status page']}/metrics")
        probe = subprocess.run([str(binaries / "toutates"), "probe", address["gRPC"]], check=False)
        assert probe.returncode == 0
        if find_spec("tritonclient") is not None:
            ask_by_grpc(address["gRPC"])


def ask_by_grpc(address: str) -> None:
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(address) as client:
        tensor = triton.InferInput("INPUT", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        assert client.infer("negative", [tensor]).as_numpy("OUTPUT").tolist() == [[-1] * 4]
