"""A measurement as one page that needs no other file, for light and dark, wide and narrow screens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from toutates.bench.intervals import mean_interval
from toutates.bench.latencies import Latencies
from toutates.bench.measured import SHARES
from toutates.bench.report import Point, Report
from toutates.bench.svg import Bars, Line, Plot, draw, shown

__all__ = ["STYLE", "write_html"]

#: Okabe and Ito's palette, which most colour-blind readers tell apart; lighter where the page is dark.
STYLE: Final = """
:root { --ground: #fbfbfa; --card: #fff; --ink: #1b1f24; --soft: #656d76; --rule: #e3e5e8;
  --c1: #0072b2; --c2: #d55e00; --c3: #009e73; --c4: #cc79a7;
  --good: #1a7f37; --bad: #b42318; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ground: #101317; --card: #181c22; --ink: #e6e9ed; --soft: #98a2ad;
  --rule: #2a3038; --c1: #56b4e9; --c2: #f0883e; --c3: #3fc79a; --c4: #e09ac4; --good: #4cc26d; --bad: #ff8177; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 40px 0 12px; }
p { margin: 4px 0; } .soft { color: var(--soft); }
.verdict { border-left: 4px solid var(--good); background: var(--card); padding: 8px 14px; margin: 12px 0;
  overflow-wrap: anywhere; }
.verdict.bad { border-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 16px 0; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 14px; }
.tiles b { display: block; font-size: 1.45rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px; }
.plots figure:only-child { max-width: 720px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; } svg .name { font-size: 12.5px; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg line.level { stroke: var(--bad); stroke-dasharray: 6 4; } svg text.level { fill: var(--bad); }
svg polyline { fill: none; stroke-width: 2; stroke-linejoin: round; } svg .dashed { stroke-dasharray: 5 4; }
i.c1 { background: var(--c1); } i.c2 { background: var(--c2); } i.c3 { background: var(--c3); }
i.c4 { background: var(--c4); }
polyline.c1, line.c1 { stroke: var(--c1); } polyline.c2, line.c2 { stroke: var(--c2); }
polyline.c3, line.c3 { stroke: var(--c3); } polyline.c4, line.c4 { stroke: var(--c4); }
rect.c1, circle.c1 { fill: var(--c1); } rect.c2, circle.c2 { fill: var(--c2); }
rect.c3, circle.c3 { fill: var(--c3); } rect.c4, circle.c4 { fill: var(--c4); }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; font-size: .85rem; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
"""

_COLUMNS: Final = ("p50", "p90", "p99", "p99.9")


def write_html(report: Report) -> str:
    """The page's text."""
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="soft">Measured by toutates bench, {escape(report.begun)}</p>',
            *_verdicts(report),
            *_tiles(report),
            *_overview(report),
            *(part for point in report.points for part in _details(point, len(report.points))),
            "<h2>All loads</h2>",
            _table(report),
            "</main></body></html>\n",
        ]
    )


def _verdicts(report: Report) -> Iterator[str]:
    for text in report.verdict():
        if text.startswith("  "):
            yield f'<p class="soft">{escape(text.strip())}</p>'
        else:
            bad = text.startswith(("FAILED", "NO VERDICT", "NO KNEE"))
            yield f'<p class="verdict{" bad" if bad else ""}">{escape(text)}</p>'
    if report.wrong():
        count = sum(len(one.measured.wrong) for one in report.points)
        yield f'<p class="verdict bad">{count:,} answers were wrong</p>'


def _tiles(report: Report) -> Iterator[str]:
    if not report.points:
        return
    best = max(report.points, key=lambda one: sum(one.measured.rates()) / len(one.measured.rates()))
    measured = best.measured
    rate = mean_interval(measured.rates())
    half = "" if math.isnan(rate.half) else f" ± {shown(rate.half)}"
    tiles = [(shown(rate.mean), f"requests/s{half}")]
    for name in ("p50", "p99"):
        if (found := measured.quantile_interval(SHARES[name])) is not None:
            half = "" if math.isnan(found.half) else f" ± {shown(found.half / 1e6)}"
            tiles.append((shown(found.mean / 1e6), f"ms at {name}{half}"))
    statuses = measured.statuses()
    tiles.append((f"{1 - statuses['OK'] / max(1, statuses.total()):.2%}", "not answered with OK"))
    for key, unit in (("cpu_us", "µs of server CPU a request"), ("batch_rows", "rows a batch")):
        if (found := measured.of_server(key)) is not None:
            tiles.append((shown(found.mean), unit))
    said = f"<p>{escape(best.name)}</p>" if len(report.points) > 1 else ""
    tiles_text = "".join(f"<div><b>{value}</b><span>{escape(text)}</span></div>" for value, text in tiles)
    yield f'{said}<div class="tiles">{tiles_text}</div>'


def _overview(report: Report) -> Iterator[str]:
    plots = []
    if len(report.points) > 2 and report.differences is None:
        by_rate = [
            (sum(one.measured.rates()) / len(one.measured.rates()), one.measured.latencies()[0])
            for one in report.points
        ]
        known = [(rate, found) for rate, found in by_rate if found.count]
        lines = [
            Line(name, [(rate, found.quantile(SHARES[name]) / 1e6) for rate, found in known], colour, marked=True)
            for colour, name in ((1, "p50"), (3, "p90"), (2, "p99"))
        ]
        plots.append(draw(Plot("Latency against throughput", "requests answered per second", "ms", lines, log_y=True)))
    if report.knee is not None and report.targets:
        plots += [draw(plot) for plot in _knee_plots(report)]
    if any(plots):
        yield f'<h2>Overview</h2><div class="plots">{"".join(plots)}</div>'


def _knee_plots(report: Report) -> Iterator[Plot]:
    assert report.knee is not None
    for target in report.targets:
        if target.figure not in SHARES:
            continue
        tried = sorted(
            (one.rate, figure / 1e6)
            for one in report.knee.trials
            if (figure := one.measured.figures().get(target.figure)) is not None
        )
        if tried:
            title = f"{target.figure} at the rates that were tried"
            level = (target.bound / 1e6, f"at most {target.bound / 1e6:g} ms")
            line = Line("", tried, 1, marked=True)
            yield Plot(title, "requests offered per second", "ms", [line], log_y=True, level=level)


def _details(point: Point, count: int) -> Iterator[str]:
    intended, sent = point.measured.latencies()
    if not intended.count or count > 12:
        return
    plots = [_percentiles(intended, sent, point.measured.open_loop), _histogram(intended), _timeline(point)]
    where = f"{point.name}, {point.server}" if count > 1 else point.name
    yield f'<h2>{escape(where)}</h2><div class="plots">{"".join(draw(plot) for plot in plots)}</div>'


def _percentiles(intended: Latencies, sent: Latencies, open_loop: bool) -> Plot:
    most = min(5, math.floor(math.log10(max(10, intended.count))))
    places = [0.0] + [place / 20 for place in range(1, 20 * most + 1)]
    lines = [_curve("from the intended time" if open_loop else "", intended, places, 1)]
    if open_loop:
        lines.append(_curve("from sending", sent, places, 3))
    ticks = [(0.0, "p0"), (1.0, "p90"), (2.0, "p99"), (3.0, "p99.9"), (4.0, "p99.99"), (5.0, "p99.999")]
    return Plot("Latency by percentile", "percentile", "ms", lines, ticks_x=ticks[: most + 1])


def _curve(name: str, latencies: Latencies, places: list[float], colour: int) -> Line:
    points = [(place, latencies.quantile(1 - 10**-place) / 1e6) for place in places]
    return Line(name, points, colour, dashed=colour == 3)


def _histogram(intended: Latencies) -> Plot:
    points = intended.points()
    low, high = math.log(max(1, points[0][0])), math.log(max(2, points[-1][0]) * 1.001)
    count = 40
    heights = [0] * count
    for end, number in points:
        place = int((math.log(max(1, end)) - low) / max(high - low, 1e-9) * count)
        heights[min(count - 1, max(0, place))] += number
    step = (high - low) / count
    total = intended.count
    bars = [
        (math.exp(low + place * step) / 1e6, math.exp(low + (place + 1) * step) / 1e6, 100 * number / total)
        for place, number in enumerate(heights)
    ]
    return Plot("How requests are spread", "latency, ms", "% of requests", bars=[Bars(bars)], log_x=True)


def _timeline(point: Point) -> Plot:
    p99s: list[tuple[float, float]] = []
    medians: list[tuple[float, float]] = []
    begin = 0.0
    for outcome in point.measured.outcomes:
        step = outcome.seconds / max(1, len(outcome.timeline))
        for place, one in enumerate(outcome.timeline):
            if one.answered:
                p99s.append((begin + place * step, one.p99_ns / 1e6))
                medians.append((begin + place * step, one.p50_ns / 1e6))
        begin += outcome.seconds
    lines = [Line("p99", p99s, 2), Line("p50", medians, 1)]
    return Plot("Latency over time, repeats one after another", "seconds", "ms", lines)


def _table(report: Report) -> str:
    heads = [
        "load",
        "requests/s",
        *(f"{name}, ms" for name in _COLUMNS),
        "max, ms",
        "errors",
        "server CPU, µs",
        "batch",
    ]
    rows = []
    for one in report.points:
        measured = one.measured
        intended, _ = measured.latencies()
        statuses = measured.statuses()
        times = [
            shown(intended.quantile(share) / 1e6) if intended.count else "-"
            for share in (*(SHARES[name] for name in _COLUMNS), 1.0)
        ]
        server = [
            shown(found.mean) if (found := measured.of_server(key)) is not None else "-"
            for key in ("cpu_us", "batch_rows")
        ]
        name = f"{one.name}, {one.server}" if report.differences is not None else one.name
        rate = shown(sum(measured.rates()) / len(measured.rates()))
        errors = f"{1 - statuses['OK'] / max(1, statuses.total()):.2%}"
        rows.append([name, rate, *times, errors, *server])
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
