"""Plots of a run, one message each, as SVG."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

from bench.density_report import Row, density_rows
from bench.goodput_report import BOUND_MS, curves
from bench.options import BASELINE, REST_BASELINE
from bench.protocols import BINARY, GRPC, JSON
from bench.report import label_of_load, protocol_of, rest_and_grpc
from bench.results import Cell, Figure, GoodputFigure, Results
from bench.summary import Spread, Summary, shown

__all__ = ["draw_plots"]

# Okabe and Ito's palette, which most colour-blind readers tell apart; Toutates in blues, the rest in the others.
_COLOURS = {
    "toutates": "#0072B2",
    "toutates-3.14t": "#56B4E9",
    "toutates-3.14t-2": "#009E73",
    BASELINE: "#D55E00",
    "grpc-threads": "#E69F00",
    REST_BASELINE: "#F0E442",
    "mlserver": "#CC79A7",
    "triton": "#000000",
    "nghttpd": "#999999",
}
_OTHER_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#F0E442")
_MARKERS = "osD^vP*X"
#: Of what is sent over each protocol; in their order on plots.
_PROTOCOL_LOOKS = {
    GRPC: ("#0072B2", "gRPC"),
    BINARY: ("#E69F00", "REST, binary data"),
    JSON: ("#CC79A7", "REST, JSON"),
}
_PROTOCOLS = list(_PROTOCOL_LOOKS)
# Inches; at Matplotlib's 72 points an inch, 778 wide.
_WIDTH = 10.8
_TITLE_COLUMNS = 85
_STYLE: Any = {
    "svg.hashsalt": "toutates",  # the same figures give the same file
    "font.size": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.titlesize": 15,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
}


def draw_plots(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Draw what the results have figures for.

    Args:
        results: a run.
        folder: receives the files.

    Returns:
        File name and description of each plot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    summary = Summary(results)
    drawn = []
    with plt.rc_context(_STYLE):
        for name, text, figure in _plots(summary, results):
            figure.savefig(folder / name, metadata={"Date": None})
            plt.close(figure)
            drawn.append((name, text))
    return drawn


def _plots(summary: Summary, results: Results) -> Iterator[tuple[str, str, Any]]:
    loads = [cell for cell in summary.cells if cell.part == "loads"]
    models = list(dict.fromkeys(cell.model for cell in loads))
    for cell in loads:
        if cell.model == models[0] and cell.load in ("1x64", "16x1", "pa16"):
            text = f"CPU of the server per request: {cell.model}, {label_of_load(cell.load)}"
            yield f"cpu-{cell.load}.svg", text, _bars(summary, cell, text)
    for model in models:
        pairs = rest_and_grpc([cell for cell in loads if cell.model == model])
        if cells := [cell for pair in pairs for cell in pair if pair[0].load.endswith("16x1")]:
            cells = sorted(set(cells), key=lambda cell: _PROTOCOLS.index(protocol_of(cell.load)))
            text = f"REST beside gRPC, CPU per request and requests per second: {model}, 16 connections"
            yield f"rest-{model}.svg", text, _rest(summary, cells, text)
    if len(models) > 1 and (shared := _shared_load(loads, models)):
        cells = [cell for cell in loads if cell.load == shared]
        text = f"The larger the model, the less the server matters: CPU per request, {label_of_load(shared)}"
        yield "models.svg", text, _models(summary, cells, text)
    latency = [cell for cell in loads if cell.model == models[0] and cell.load in ("pa16", "16x1")]
    if latency:
        text = f"Latency, median and 99th percentile: {latency[-1].model}, {label_of_load(latency[-1].load)}"
        yield "latency.svg", text, _latency(summary, latency[-1], text)
    axes = {
        "payload": ("CPU per request against the size of the request, or of the answer", "bytes", True),
        "models": ("CPU per request against the number of models asked in turn", "models", False),
        "connections": ("CPU per request beside idle connections", "idle connections", False),
    }
    for part, (text, axis, logarithmic) in axes.items():
        cells = [cell for cell in summary.cells if cell.part == part]
        if len({cell.x for cell in cells}) > 1:
            yield f"{part}-swept.svg", text, _lines(summary, cells, text, axis, logarithmic)
    for (server, arrivals), ways in curves(results).items():
        if any(len(by_x) > 1 for by_x in ways.values()):
            text = f"Answered within {BOUND_MS:g} ms against what is offered: {server}, {arrivals} arrivals"
            name = "".join(one if one.isalnum() else "-" for one in f"{server}-{arrivals}".lower())
            yield f"goodput-{name}.svg", text, _goodput(ways, text)
    if any(len(rows) > 1 for rows in density_rows(results).values()):
        text = "What models take, and what one of them gets, by their number"
        yield "density.svg", text, _density(density_rows(results), text)
    if results.memory:
        text = "Resident memory over a server's life"
        yield "memory.svg", text, _memory(results, text)


def _shared_load(loads: Sequence[Cell], models: Sequence[str]) -> str | None:
    """A load that every model got."""
    for name in ("16x1", "pa16", *(cell.load for cell in loads)):
        if {cell.model for cell in loads if cell.load == name} == set(models):
            return name
    return None


def _bars(summary: Summary, cell: Cell, title: str) -> Any:
    servers = summary.servers([cell])[::-1]
    figure, axes = plt.subplots(figsize=(_WIDTH, 1.6 + 0.55 * len(servers)))
    user, system = (_medians(summary, servers, cell, value) for value in (_user, _system))
    colours = [_colour(server) for server in servers]
    axes.barh(servers, user, color=colours)
    axes.barh(servers, system, left=user, color=colours, alpha=0.5, hatch="//", edgecolor="white")
    widest = max(map(sum, zip(user, system, strict=True)))
    for row, server in enumerate(servers):
        spread = summary.cpu(server, cell)
        axes.text(user[row] + system[row] + widest * 0.01, row, f" {spread}", va="center")
    axes.set_xlim(0, widest * 1.25)
    axes.set_xlabel("CPU of the server per request, µs: user (full), system (hatched); median (least-greatest)")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    return figure


def _rest(summary: Summary, cells: Sequence[Cell], title: str) -> Any:
    servers = summary.servers(cells)[::-1]
    figure, pair = plt.subplots(1, 2, sharey=True, figsize=(_WIDTH, 1.8 + 0.7 * len(servers)))
    height = 0.8 / len(cells)
    for axes, value, label in (
        (pair[0], _cpu, "CPU of the server per request, µs"),
        (pair[1], _rate, "requests per second"),
    ):
        for index, cell in enumerate(cells):
            lengths = _medians(summary, servers, cell, value)
            places = [row + 0.4 - (index + 0.5) * height for row in range(len(servers))]
            colour, name = _PROTOCOL_LOOKS[protocol_of(cell.load)]
            axes.barh(places, lengths, height, color=colour, label=name if axes is pair[0] else None)
            for place, length in zip(places, lengths, strict=True):
                axes.text(length, place, f" {shown(length)}" if length else "", va="center", fontsize=10)
        axes.set_xlabel(label)
        axes.set_xscale("log")
        axes.set_yticks(range(len(servers)), servers)
        axes.margins(x=0.15)
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=len(cells))
    return figure


def _models(summary: Summary, cells: Sequence[Cell], title: str) -> Any:
    servers = summary.servers(cells)
    figure, axes = plt.subplots(figsize=(_WIDTH, 5.5))
    for index, server in enumerate(servers):
        points = [(place, spread.median) for place, cell in enumerate(cells) if (spread := summary.cpu(server, cell))]
        axes.plot(
            [place + (index - len(servers) / 2) * 0.05 for place, _ in points],
            [value for _, value in points],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=9,
            linestyle="none",
            color=_colour(server),
            label=server,
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(cells)), [cell.model for cell in cells])
    axes.set_xlim(-0.5, len(cells) - 0.5)
    axes.grid(axis="y", alpha=0.3)
    axes.set_ylabel("CPU of the server per request, µs")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def _latency(summary: Summary, cell: Cell, title: str) -> Any:
    servers = summary.servers([cell])[::-1]
    figure, axes = plt.subplots(figsize=(_WIDTH, 1.6 + 0.5 * len(servers)))
    median, high = (_medians(summary, servers, cell, value) for value in (_p50, _p99))
    axes.hlines(servers, median, high, color=[_colour(server) for server in servers], linewidth=3)
    axes.plot(median, servers, "o", markersize=9, color="black", label="median", linestyle="none")
    axes.plot(high, servers, "|", markersize=18, markeredgewidth=3, color="black", label="99th percentile")
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("µs, as the client saw it; client and server share the machine's cores")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def _lines(summary: Summary, cells: Sequence[Cell], title: str, axis: str, logarithmic: bool) -> Any:
    figure, axes = plt.subplots(figsize=(_WIDTH, 5))
    points = sorted({cell.x for cell in cells})
    models = list(dict.fromkeys(cell.model for cell in cells))
    for index, server in enumerate(summary.servers(cells)):
        for model in models:
            spreads = [(cell.x, summary.cpu(server, cell)) for cell in cells if cell.model == model]
            known = sorted((x, spread) for x, spread in spreads if spread is not None)
            if known:
                values = [spread.median for _, spread in known]
                least = [spread.median - spread.least for _, spread in known]
                greatest = [spread.greatest - spread.median for _, spread in known]
                axes.errorbar(
                    [points.index(x) for x, _ in known],
                    values,
                    yerr=(least, greatest),
                    capsize=4,
                    marker=_MARKERS[index % len(_MARKERS)],
                    color=_colour(server),
                    linestyle="-" if model == models[0] else ":",
                    label=server if model == models[0] else f"{server}, {model.rpartition(', ')[2]}",
                )
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    # Evenly spaced: the axis tells its points, most of which are ten times apart.
    axes.set_xticks(range(len(points)), [f"{x:,}" for x in points])
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel(axis)
    axes.set_ylabel("CPU of the server per request, µs")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def _goodput(ways: Mapping[str, Mapping[int, Sequence[GoodputFigure]]], title: str) -> Any:
    figure, axes = plt.subplots(figsize=(_WIDTH, 5))
    most = max(x for by_x in ways.values() for x in by_x)
    axes.plot([0, 100], [0, 100], color="#999999", linestyle=":", label="all that is offered")
    for index, (way, by_x) in enumerate(ways.items()):
        colour = (_COLOURS[BASELINE], _COLOURS["toutates"])[index % 2]
        points = sorted(by_x)
        spreads = [
            Spread.of([100 * one.in_time_per_second / one.saturated_per_second for one in by_x[x]]) for x in points
        ]
        offered = [
            statistics.median(100 * one.offered_per_second / one.saturated_per_second for one in by_x[x])
            for x in points
        ]
        axes.errorbar(
            offered,
            [spread.median for spread in spreads],
            yerr=(
                [spread.median - spread.least for spread in spreads],
                [spread.greatest - spread.median for spread in spreads],
            ),
            capsize=4,
            marker=_MARKERS[index],
            color=colour,
            label=way,
        )
    axes.set_xlim(0, most * 1.05)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_xlabel("offered, % of the saturated rate")
    axes.set_ylabel("answered in time, % of the saturated rate")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=len(ways) + 1)
    return figure


def _density(servers: Mapping[str, Sequence[Row]], title: str) -> Any:
    panels: list[tuple[str, Callable[[Row], float | None]]] = [
        ("resident memory, MiB", lambda row: row.figure.resident_mib),
        ("CPU of the start, s", lambda row: row.figure.start_cpu_s),
        ("threads", lambda row: row.figure.threads),
        ("p50 of one, times that alone", lambda row: row.medians()[0]),
        ("CPU per request, times that alone", lambda row: row.medians()[1]),
        ("idle, % of a core", lambda row: row.figure.idle_cores * 100),
        ("/metrics, KB", lambda row: row.figure.metrics_bytes / 1_000),
        ("/metrics at rest, ms", lambda row: row.figure.metrics_ms),
        ("/metrics after all were asked, ms", lambda row: row.figure.burst_metrics_ms),
    ]
    figure, grid = plt.subplots(3, 3, figsize=(_WIDTH, 9))
    for axes, (label, value) in zip(grid.flat, panels, strict=True):
        for index, (server, rows) in enumerate(servers.items()):
            points = [(row.figure.models, known) for row in rows if (known := value(row)) is not None]
            axes.plot(
                [models for models, _ in points],
                [known for _, known in points],
                marker=_MARKERS[index % len(_MARKERS)],
                color=_colour(server),
                label=server if axes is grid.flat[0] else None,
            )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.set_title(label, fontsize=12, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("models")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=len(servers))
    return figure


def _memory(results: Results, title: str) -> Any:
    figure, axes = plt.subplots(figsize=(_WIDTH, 4.5))
    stages = list(dict.fromkeys(one.stage for one in results.memory))
    for index, server in enumerate(dict.fromkeys(one.server for one in results.memory)):
        own = [one for one in results.memory if one.server == server]
        axes.plot(
            [stages.index(one.stage) for one in own],
            [one.resident_mib for one in own],
            marker=_MARKERS[index % len(_MARKERS)],
            color=_colour(server),
            label=server,
        )
        for stage, resident in ((one.stage, one.resident_mib) for one in own):
            where = (stages.index(stage), resident)
            axes.annotate(shown(resident), where, (0, 8), textcoords="offset points", ha="center")
    axes.set_ylim(0, max(one.resident_mib for one in results.memory) * 1.2)
    axes.set_xticks(range(len(stages)), [f"after\n{stage}" for stage in stages])
    axes.set_ylabel("resident memory, MiB")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), x=0.01, ha="left")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def _medians(
    summary: Summary, servers: Sequence[str], cell: Cell, value: Callable[[Figure], float | None]
) -> list[float]:
    spreads = (summary.spread(server, cell, value) for server in servers)
    return [spread.median if spread else 0.0 for spread in spreads]


def _cpu(figure: Figure) -> float:
    return figure.cpu_us


def _rate(figure: Figure) -> float:
    return figure.requests_per_second


def _user(figure: Figure) -> float:
    return figure.user_us


def _system(figure: Figure) -> float:
    return figure.system_us


def _p50(figure: Figure) -> float:
    return figure.p50_us


def _p99(figure: Figure) -> float:
    return figure.p99_us


def _colour(server: str) -> str:
    return _COLOURS.get(server) or _OTHER_COLOURS[sum(server.encode()) % len(_OTHER_COLOURS)]
