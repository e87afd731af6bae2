"""Results as a run leaves them."""

from __future__ import annotations

from bench.results import Cell, Failure, Figure, GoodputFigure, MemoryFigure, Results

__all__ = ["CELL", "figure", "goodput", "some_results"]

CELL = Cell("loads", "mlp", "16x1")


def figure(server: str, round_number: int, user_us: float, system_us: float = 0.0, cell: Cell = CELL) -> Figure:
    batch = 2.5 if server == "toutates" else None
    return Figure(server, cell, round_number, 1000, user_us, system_us, 5000.0, 100.0, 200.0, batch, 64.0)


def goodput(
    way: str,
    percent: int,
    in_time: float,
    *,
    has_verdict: bool = True,
    best_share: float | None = None,
    at_once_share: float | None = None,
) -> GoodputFigure:
    """Of a server that answers 1,000 a second when it is never without requests."""
    cell = Cell("goodput", way, "Poisson", percent)
    by_model = {"small": 0.75, "large": 0.25}
    offered = 10.0 * percent
    return GoodputFigure(
        *(
            "toutates",
            cell,
            1,
            1_000.0,
            offered,
            in_time,
            in_time,
            {"OK": 9},
            by_model,
            0.25,
            0.5,
            has_verdict,
            best_share,
            at_once_share,
        )
    )


def some_results() -> Results:
    """Two servers over two rounds, one that failed in the second, a sweep, memory, and something left out."""
    results = Results("name", "2026-11-20T12:00:00Z", finished="2026-11-20T12:10:00Z")
    results.machine = {
        "cpu": "EPYC",
        "cores": 2,
        "memory_gib": 8.0,
        "kernel": "Linux 6.1",
        "libc": "glibc 2.36",
        "load_average_at_start": 0.1,
        "open_files_limit": 4096,
    }
    results.servers = {"toutates": "this server", "grpc.aio": "that server", "broken": "wrong"}
    results.options = {"rounds": 2, "seconds": 1.5}
    for number, (ours, theirs) in enumerate(((10.0, 100.0), (20.0, 100.0)), start=1):
        results.figures.append(figure("toutates", number, ours - 4, 4))
        results.figures.append(figure("grpc.aio", number, theirs))
    results.figures.append(figure("broken", 1, 1.0))
    results.failures.append(Failure("broken", CELL, 2, "a sampled answer\nis | wrong"))
    for idle in (0, 100):
        cell = Cell("connections", "mlp", "16x1", idle)
        results.figures.append(figure("toutates", 1, 10.0 + idle / 10, cell=cell))
    results.memory.append(MemoryFigure("toutates", "start", 70.25, 12))
    results.memory.append(MemoryFigure("toutates", "1,000,000 requests", 71.5, 12))
    results.leave_out("mlserver", "PyPI brings it")
    return results
