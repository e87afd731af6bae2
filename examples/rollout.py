"""Deploys version 2 of a model beside version 1 while clients send requests, finds it wanting, and rolls back.

    python examples/rollout.py [--seconds 1]

The script makes a repository in a temporary directory, starts a server on it with ``--model-control-mode explicit``,
and does what a deployment pipeline would: put files in place, ask for the load, look at the answers, decide. Clients
that name no version get the newest one; one that must not change over names its version. It ends with 0 if every step
went as it should and not one request failed.

Needs tritonclient[grpc] and onnx, beside the server.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import tritonclient.grpc as triton
from onnx import TensorProto, helper, numpy_helper

MODEL = "price"
START_SECONDS = 60.0


def write_version(repository: Path, number: int, factor: float) -> None:
    """OUTPUT = INPUT * factor, as one more version. The directory appears at once, with everything in it."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("INPUT", "OUTPUT")]
    weights = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    node = helper.make_node("Mul", ["INPUT", "factor"], ["OUTPUT"])
    graph = helper.make_graph([node], MODEL, tensors[:1], tensors[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    half = repository / MODEL / f".{number}"
    half.mkdir(parents=True)
    onnx.save_model(model, half / "model.onnx")
    half.rename(repository / MODEL / str(number))


@contextmanager
def server(repository: Path) -> Iterator[str]:
    """A server on a free port; gives its address."""
    command = [sys.executable, "-m", "toutates", "--model-repository", str(repository), "--grpc-addr", "127.0.0.1:0"]
    command += ["--metrics-addr", "off", "--http-addr", "off"]
    command += ["--model-control-mode", "explicit", "--load-model", MODEL]
    log_path = repository.parent / "server.log"
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until = time.monotonic() + START_SECONDS
            while (found := re.search(r"serving gRPC on (127\.0\.0\.1:\d+)", log_path.read_text())) is None:
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the server does not start:\n{log_path.read_text()}")
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()


def infer(client: triton.InferenceServerClient, version: str = "") -> float:
    """What the model makes of 1."""
    tensor = triton.InferInput("INPUT", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    return float(client.infer(MODEL, [tensor], version, client_timeout=30).as_numpy("OUTPUT")[0, 0])


class Clients:
    """Some that take the newest version, and one that stays with version 1."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(version,)) for version in ("", "", "", "1")]
        self.answers: Counter[tuple[str, float]] = Counter()
        self.failures: list[str] = []
        for thread in self._threads:
            thread.start()

    def _run(self, version: str) -> None:
        with triton.InferenceServerClient(self._url) as client:
            while not self._stop.is_set():
                try:
                    self.answers[version or "newest", infer(client, version)] += 1
                except triton.InferenceServerException as error:
                    self.failures.append(str(error))

    def stop(self) -> None:
        """Wait until the last request is answered."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def expect(what: str, found: object, wanted: object) -> None:
    """Go on if it is so."""
    print(f"{what}: {found}")
    if found != wanted:
        raise SystemExit(f"{what} should be {wanted}")


def roll_out_and_back(client: triton.InferenceServerClient, repository: Path, seconds: float) -> None:
    """The pipeline."""
    expect("versions", list(client.get_model_metadata(MODEL).versions), ["1"])
    time.sleep(seconds)

    write_version(repository, 2, factor=3.0)
    client.load_model(MODEL)
    expect("versions after the load", list(client.get_model_metadata(MODEL).versions), ["1", "2"])
    expect("the newest answers", infer(client), 3.0)
    expect("version 1 still answers", infer(client, "1"), 2.0)
    time.sleep(seconds)

    # Version 2 turns out to be wrong. Version 1 was never unloaded, so going back takes no time.
    shutil.rmtree(repository / MODEL / "2")
    client.load_model(MODEL)
    expect("versions after going back", list(client.get_model_metadata(MODEL).versions), ["1"])
    expect("the newest answers", infer(client), 2.0)
    time.sleep(seconds)


def main() -> None:
    """Run the scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="between two steps (default: 1)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        write_version(repository, 1, factor=2.0)
        with server(repository) as url:
            clients = Clients(url)
            try:
                with triton.InferenceServerClient(url) as client:
                    roll_out_and_back(client, repository, seconds)
            finally:
                clients.stop()
    for (version, answer), count in sorted(clients.answers.items()):
        print(f"asked for {version}, got {answer}: {count} times")
    expect("requests that failed", clients.failures, [])
    expect("answers", sorted(clients.answers), [("1", 2.0), ("newest", 2.0), ("newest", 3.0)])


if __name__ == "__main__":
    main()
