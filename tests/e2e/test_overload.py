"""Three times the load that a model can take: those who are accepted are answered in time, and as many as ever.

A batch of four rows takes as long as a device might, and hardly any of the processor, so that the model and not the
machine sets the rate. Both rates are measured beside each other, several times if need be; what these tests are there
for, a server that is busy with work that nobody waits for, makes every time a bad one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.e2e.held import running_device
from tests.e2e.models import CONFIG, add_model, heavy_model
from tests.e2e.open_loop import Report, offer
from tests.e2e.process import ServerProcess
from tests.e2e.support import pb
from tests.e2e.wire import client_of

#: What is measured again where the machine is busy may take minutes.
pytestmark = pytest.mark.timeout(600)

BATCH: Final = 4
CAPACITY: Final = 8
#: Rows that can be in the ring at once: those who wait, and those who run.
RING: Final = BATCH * CAPACITY
ATTEMPTS: Final = 5
OVERLOAD: Final = 3.0
SECONDS: Final = 1.5
#: What the run of a batch takes.
RUN_S: Final = 0.02


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("heavy")
    add_model(root / "models", "heavy", heavy_model(products=1), config=CONFIG.format(BATCH, CAPACITY))
    with running_device(root / "models", root, RUN_S, ["--processing-cores", "1"], model="heavy") as process:
        offer(process.port, "heavy", 100, 0.5)
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def rows_run(process: ServerProcess) -> int:
    """By the model's executor so far, wanted or not."""
    with client_of(process.port) as client:
        question = pb.ModelStatisticsRequest(name="heavy").SerializeToString()
        answer = client.call("/inference.GRPCInferenceService/ModelStatistics", question)
    [statistics] = pb.ModelStatisticsResponse.FromString(answer.data[5:]).model_stats
    return sum(batch.batch_size * batch.compute_infer.count for batch in statistics.batch_stats)


def anonymous_kib(process: ServerProcess) -> int:
    """Resident memory but for that of files."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1])


def shortcomings(process: ServerProcess, most: float, deadline_s: float | None) -> list[str]:
    """Offer too much once; what is not as it should be.

    Args:
        process: the server.
        most: good answers per second that it was seen to give just now.
        deadline_s: of every request; None for no deadline.
    """
    before_rows, before_kib = rows_run(process), anonymous_kib(process)
    deadline_ms = None if deadline_s is None else int(deadline_s * 1_000)
    report = offer(process.port, "heavy", OVERLOAD * most, SECONDS, deadline_ms)
    run, grown_kib = rows_run(process) - before_rows, anonymous_kib(process) - before_kib
    good, refused = report.statuses.get("0", 0), report.statuses.get("8", 0)
    late = report.statuses.get("4", 0)
    assert good + refused + late == report.sent, report.statuses
    assert deadline_s is not None or not late
    # The ring's worth of work, and one batch more that runs before it.
    longest = (RING + BATCH) / most if deadline_s is None else deadline_s
    figures: dict[str, tuple[float, float]] = {
        "seconds late with sending": (report.late, 0.1),
        "share of the goodput lost": (1 - report.goodput / most, 0.1),
        "99th percentile of good answers": (Report.percentile(report.good_times, 0.99), 1.5 * longest),
        "median of refusals": (Report.percentile(report.refused_times, 0.5), longest / 2),
        "share of the rows run for nobody": (1 - good / run, 0.1),
        "KiB of memory": (grown_kib, 2_048),
    }
    return [f"{name}: {value:.3f}, more than {bound:.3f}" for name, (value, bound) in figures.items() if value > bound]


@pytest.mark.alone
@pytest.mark.parametrize("deadline", [None, 0.6, 1.2], ids=["no deadline", "short deadline", "longer deadline"])
def test_at_three_times_the_load_goodput_latency_and_memory_stay(heavy: ServerProcess, deadline: float | None) -> None:
    """``deadline`` is in terms of the time that a request spends in a full ring: below 1, all of it is too late."""
    found: list[list[str]] = []
    for _ in range(ATTEMPTS):
        most = offer(heavy.port, "heavy", 1_000, SECONDS).goodput
        found.append(shortcomings(heavy, most, None if deadline is None else deadline * (RING + BATCH) / most))
        if not found[-1]:
            return
    raise AssertionError(found)


@pytest.mark.alone
def test_after_an_overload_everybody_is_answered_again(heavy: ServerProcess) -> None:
    for _ in range(ATTEMPTS):
        most = offer(heavy.port, "heavy", 1_000, SECONDS, 100).goodput
        report = offer(heavy.port, "heavy", most / 4, 1.0)
        if report.statuses == {"0": report.sent}:
            return
    raise AssertionError(report.statuses)


@pytest.mark.long
@pytest.mark.parametrize("deadline_ms", [None, 300])
def test_of_far_too_much_everything_is_answered_or_refused_and_the_next_is_answered(
    heavy: ServerProcess, deadline_ms: int | None
) -> None:
    report = offer(heavy.port, "heavy", OVERLOAD * BATCH / RUN_S, SECONDS, deadline_ms)
    assert set(report.statuses) <= ({"0", "8"} if deadline_ms is None else {"0", "4", "8"}), report.statuses
    assert sum(report.statuses.values()) == report.sent
    test_heavy_model_returns_its_input(heavy)


@pytest.mark.long
def test_heavy_model_returns_its_input(heavy: ServerProcess) -> None:
    """Or the tests above would be about nothing."""

    row = np.arange(64, dtype=np.float32)
    request = pb.ModelInferRequest(model_name="heavy")
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(row.tobytes())
    with client_of(heavy.port) as client:
        answer = client.call("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())
    response = pb.ModelInferResponse.FromString(answer.data[5:])
    np.testing.assert_array_equal(np.frombuffer(response.raw_output_contents[0], np.float32), row)
