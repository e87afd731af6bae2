"""``toutates bench`` beside h2load (Debian: ``nghttp2-client``): the same load on a server whose core is the limit.

On a machine of its own (``make test-alone``): what else runs takes from one of both.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import models
from bench.goodput import on_cores
from bench.question import METHOD, Question
from tests.e2e.process import FRESH, ServerProcess, running
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.load import Asked, Load, run_load
from toutates.bench.measured import Measured

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="client and server need a core each"),
]

CONNECTIONS, STREAMS, SECONDS = 16, 8, 1
#: Loads of each, in turns. Other work of the machine takes from any of them, so that the best of each are compared.
TURNS = 8


def rate_of_h2load(server: ServerProcess, body: Path, core: int) -> float:
    command = ["h2load", "-D", str(SECONDS), "--warm-up-time=0", "-c", str(CONNECTIONS), "-m", str(STREAMS)]
    command += ["-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    with on_cores([core]):
        report = subprocess.run(
            [*command, f"http://127.0.0.1:{server.port}{METHOD}"], capture_output=True, text=True, check=True
        ).stdout
    assert re.search(r" 0 failed, 0 errored", report), report
    found = re.search(r"finished in [\d.]+s, ([\d.]+) req/s", report)
    assert found, report
    return float(found[1])


def measured(server: ServerProcess, question: Question, core: int) -> Measured:
    endpoint = Endpoint(GRPC, "127.0.0.1", server.port)
    load = Load(
        endpoint.host, endpoint.port, [Asked(METHOD, question.message)], CONNECTIONS, None, SECONDS,
        under_way=CONNECTIONS * STREAMS, cores=[core],
    )  # fmt: skip
    result = run_load(load)
    assert result.samples
    for _, message in result.samples:
        question.check_answer(message)
    return Measured([result.outcome], open_loop=False)


def test_a_server_is_driven_as_hard_as_h2load_does(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    model = models.mlp(tmp_path / "models")
    question = Question(model)
    body = tmp_path / "body"
    body.write_bytes(question.body)
    theirs = ours = 0.0
    with contextlib.ExitStack() as stack:
        with on_cores(cores[:1]):
            server = stack.enter_context(running(model.repository, tmp_path, ["--processing-cores", "1"], FRESH))
        for turn in range(TURNS):
            theirs = max(theirs, rate_of_h2load(server, body, cores[1]))
            one = measured(server, question, cores[1])
            assert one.statuses().keys() == {"OK"}
            ours = max(ours, one.rates()[0])
            if turn and ours >= 0.95 * theirs:
                break
    assert ours >= 0.95 * theirs, f"{ours:,.0f} requests/s, h2load {theirs:,.0f}"
