"""Goodput: what is answered within a bound, against what is offered, by an open loop over models of different size.

The client has a core of its own and the server the others, so that neither is measured by what the other takes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from operator import mul
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from bench import process
from bench.best_order import best_in_time, refused_at_once_in_time
from bench.errors import NoFigure
from bench.goodput_report import BOUND_MS, RUNS_US
from bench.measure import Measurer
from bench.models import Model
from bench.question import METHOD, Question
from bench.results import Cell, GoodputFigure, Results
from bench.servers import Server
from bench.sized_models import configured, sized_model
from bench.start import Starter, in_turn
from toutates.bench.arrivals import Arrivals, make_schedule
from toutates.bench.load import Asked, Load, LoadFailed, LoadResult, run_load

__all__ = ["PART", "measure_goodput", "on_cores"]

PART: Final = "goodput"
#: Of the rate at which the server answers when it is never without requests.
SHARES: Final = (0.3, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0, 3.0)
#: Coefficients of variation of the gaps between requests.
ARRIVALS: Final = {"Poisson": 1.0, "Gamma, CV 4": 4.0}
IN_ORDER: Final = "in order"
_KEY: Final = "latency_target_ms"
WITH_TARGET: Final = f"{_KEY}: {BOUND_MS:g}"

#: Rows of a batch, and requests for each one of the largest model: so that the server is short of time for its models,
#: and not for receiving requests.
_MODELS: Final = {"small": (64, 10), "middle": (16, 3), "large": (4, 1)}
_CONNECTIONS: Final = 16
_UNDER_WAY: Final = 128
#: A client that is later than this with one request of a hundred has no verdict.
_MOST_LAG_NS: Final = round(BOUND_MS * 1e6 / 10)
#: Longer than other loads, because of a burst there are but some in a second.
_LENGTH: Final = 2.0
#: A load for which the client lagged is made again, so often.
_TRIES: Final = 3
#: Up to this share the best order is simulated, by what the server took without targets. Beyond, batches are large, and
#: the simulation knows none.
_MOST_SIMULATED: Final = 0.7


def measure_goodput(
    folder: Path, starter: Starter, measurer: Measurer, results: Results, rounds: int, seconds: float
) -> None:
    """Offer some servers 0.3 to 3 times what they can answer, without and with a latency target.

    Args:
        folder: for models and logs.
        starter: of servers that read config.yaml.
        measurer: keeps the results on the disk.
        results: gets the figures.
        rounds: how often everything is measured.
        seconds: length of a load, roughly.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        results.leave_out(PART, "client and server need a core each")
        return
    with contextlib.ExitStack() as stack:
        ways: dict[str, tuple[list[Server], list[Question]]] = {}
        sized = [sized_model(folder / "sized", name, RUNS_US[name], rows) for name, (rows, _) in _MODELS.items()]
        for name, way, further in (("order", IN_ORDER, ""), ("target", WITH_TARGET, f"{_KEY}: {BOUND_MS:g}\n")):
            models = configured(sized, folder / name / "models", further)
            if refusal := _refused(models):
                results.leave_out(way, refusal)
                continue
            with on_cores(cores[:-1]):
                started = stack.enter_context(starter.servers(models, folder / name))
            ways[way] = started, [Question(model) for model in models]
        for number in range(1, rounds + 1):
            for server in in_turn(ways[IN_ORDER][0], number) if IN_ORDER in ways else ():
                others = {
                    way: next((one for one in started if one.name == server.name), None)
                    for way, (started, _) in ways.items()
                }
                questions = {way: questions for way, (_, questions) in ways.items()}
                _measure(server, others, questions, measurer, results, number, seconds * _LENGTH, cores[-1])


def _measure(
    in_order: Server,
    servers: dict[str, Server | None],
    questions: dict[str, list[Question]],
    measurer: Measurer,
    results: Results,
    number: int,
    seconds: float,
    core: int,
) -> None:
    """One round of one kind of server: what it can answer, and all that is offered of it."""
    cell = Cell(PART, IN_ORDER, "saturated")
    try:
        full = _load(in_order, questions[IN_ORDER], None, 1.0, 0, seconds, core).outcome
    except NoFigure as error:
        measurer.refuse(in_order, cell, number, error)
        return
    saturated = full.total.answered / max(full.seconds, full.last_answer_s)
    print(f"  {in_order.name} answers {saturated:,.0f} a second, round {number}", file=sys.stderr, flush=True)
    for arrivals, variation in ARRIVALS.items():
        for place, share in enumerate(SHARES):
            for way, server in servers.items():
                if server is None:
                    continue
                cell = Cell(PART, way, arrivals, round(share * 100))
                load = partial(_load, server, questions[way], share * saturated, variation)
                simulate = None
                if way == IN_ORDER and share <= _MOST_SIMULATED and len(os.sched_getaffinity(server.pid)) == 1:
                    simulate = partial(_simulated, questions[way], share * saturated, variation)
                try:
                    figure = _figure(server, cell, load, number, place, saturated, seconds, core, simulate)
                except NoFigure as error:
                    measurer.refuse(server, cell, number, error)
                    continue
                results.goodput.append(figure)
                told = f"{figure.in_time_per_second:,.0f} of {figure.offered_per_second:,.0f} a second in time"
                lag = "" if figure.has_verdict else f"; NO VERDICT, the client was {figure.lag_ms:.1f} ms late"
                print(f"  {server.name}, {cell}, round {number}: {told}{lag}", file=sys.stderr, flush=True)
                measurer.save()


def _figure(
    server: Server,
    cell: Cell,
    load: partial[LoadResult],
    number: int,
    place: int,
    saturated: float,
    seconds: float,
    core: int,
    simulate: partial[tuple[float, float]] | None,
) -> GoodputFigure:
    """One load, made again while the client is late."""
    for attempt in range(_TRIES):
        seed = 1_000 * number + 10 * place + attempt
        server.check_alive()
        before = process.cpu_time(server.pid).total
        outcome = load(seed, seconds, core).outcome
        after = process.cpu_time(server.pid).total
        if not outcome.lagged(_MOST_LAG_NS):
            break
    total = outcome.total
    best = at_once = None
    if simulate is not None:
        best, at_once = simulate(seed, seconds, after - before, [one.answered for one in outcome.requests])
    return GoodputFigure(
        server=server.name,
        cell=cell,
        round=number,
        saturated_per_second=saturated,
        offered_per_second=total.offered / outcome.seconds,
        in_time_per_second=total.in_time / outcome.seconds,
        answered_per_second=total.answered / outcome.seconds,
        statuses=dict(total.statuses),
        in_time_by_model={
            name: one.in_time / max(1, one.offered) for name, one in zip(_MODELS, outcome.requests, strict=True)
        },
        lag_ms=outcome.lag.quantile(0.99) / 1e6,
        client_cpu=outcome.client_cpu,
        has_verdict=not outcome.lagged(_MOST_LAG_NS),
        best_share=best,
        at_once_share=at_once,
    )


def _simulated(
    questions: Sequence[Question],
    rate: float,
    variation: float,
    seed: int,
    seconds: float,
    used_s: float,
    answered: Sequence[int],
) -> tuple[float, float]:
    """What the best order would have answered in time of a load, and what one that refuses at once would have.

    Runs take what they take alone, and what else the server took is beside them: which thread runs a batch is its
    own business.

    Args:
        questions, rate, variation, seed, seconds: of the load.
        used_s: of CPU by the server meanwhile.
        answered: how many requests to each model were answered.
    """
    runs_s = [question.run_seconds for question in questions]
    beside_s = max(0.0, used_s - sum(map(mul, answered, runs_s))) / max(sum(answered), 1)
    weights = [weight for _, weight in _MODELS.values()]
    schedule = make_schedule(Arrivals(variation), rate, seconds, weights, seed)
    given = schedule, [run_s * 1e9 for run_s in runs_s], beside_s * 1e9, BOUND_MS * 1e6
    return best_in_time(*given), refused_at_once_in_time(*given)


def _load(
    server: Server,
    questions: Sequence[Question],
    rate: float | None,
    variation: float,
    seed: int,
    seconds: float,
    core: int,
) -> LoadResult:
    """Make a load, and compare some of its answers with ONNX Runtime's.

    Raises:
        NoFigure: it could not be made, or an answer is wrong.
    """
    server.check_alive()
    host, _, port = server.address.rpartition(":")
    weights = [weight for _, weight in _MODELS.values()]
    asked = [Asked(METHOD, one.message, weight) for one, weight in zip(questions, weights, strict=True)]
    load = Load(
        host, int(port), asked, _CONNECTIONS, rate, seconds, Arrivals(variation), _UNDER_WAY, bound_ms=BOUND_MS,
        seed=seed, cores=(core,), ahead=True, patience_s=1.0,
    )  # fmt: skip
    try:
        result = run_load(load)
        for choice, message in result.samples:
            questions[choice].check_answer(message)
    except (LoadFailed, DecodeError, IndexError, ValueError) as error:
        raise NoFigure(str(error)) from error
    server.check_alive()
    if not result.outcome.total.answered:
        raise NoFigure(f"nothing was answered: {result.texts}")
    return result


def _refused(models: Sequence[Model]) -> str:
    """Why Toutates does not take the models' config.yaml, or ""."""
    command = [sys.executable, "-m", "toutates", "check", str(models[0].repository)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return "" if done.returncode == 0 else " ".join((done.stdout + done.stderr).split())[:400]


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is started in the block runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
