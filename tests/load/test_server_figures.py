"""What a server counts is read from metrics, and from the system."""

from __future__ import annotations

import os
import socket

import pytest

from toutates.bench.server_figures import Counts, ServerFigures, parse_metrics, process_of_port

TRITON = """# HELP nv_inference_count Number of inferences performed
nv_inference_request_success{model="mlp",version="1"} 100
nv_inference_count{model="mlp",version="1"} 200
nv_inference_exec_count{model="mlp",version="1"} 50
nv_inference_queue_duration_us{model="mlp",version="1"} 3000
nv_inference_count{model="mlp",version="2"} 7
nv_inference_count{model="other",version="1"} 999
process_cpu_seconds_total 1.5e0
process_resident_memory_bytes 1048576
nonsense{
"""


def test_metrics_of_the_models_are_added_up() -> None:
    found = parse_metrics(TRITON, [("mlp", "")])
    assert (found.requests, found.rows, found.runs, found.queue_us) == (100, 207, 50, 3_000)
    assert (found.cpu_s, found.resident_bytes) == (1.5, 2**20)
    assert parse_metrics(TRITON, [("mlp", "1")]).rows == 200


def test_several_processes_count_together() -> None:
    text = TRITON + "".join(f'toutates_process_cpu_seconds_total{{process="{at}"}} 2\n' for at in range(3))
    assert parse_metrics(text, []).cpu_s == 6


def test_figures_are_per_request_and_per_run() -> None:
    before = parse_metrics(TRITON, [("mlp", "1")])
    after = Counts(2.0, 2**21, 300, 1_000, 150, 5_000)
    figures = ServerFigures.between(before, after, 250)
    assert figures.cpu_us == pytest.approx(0.5e6 / 250)
    assert figures.batch_rows == 8
    assert figures.queue_us == 10
    assert figures.resident_mib == 2
    assert figures.infer_us is None


def test_a_server_that_was_started_again_has_no_figures() -> None:
    assert ServerFigures.between(Counts(cpu_s=5), Counts(cpu_s=1), 10).cpu_us is None


def test_the_process_that_listens_on_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert process_of_port("127.0.0.1", port) == os.getpid()
    assert process_of_port("127.0.0.1", port) is None
    assert process_of_port("192.0.2.1", port) is None
