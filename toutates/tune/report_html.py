"""A tuning as one page that needs no other file, in the style of that of ``toutates bench``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from toutates.bench.report_html import STYLE
from toutates.bench.svg import Line, Plot, draw, shown
from toutates.tune.report import front, verdict_lines
from toutates.tune.tuning import Trial, Tuning

__all__ = ["write_html"]


def write_html(tuning: Tuning) -> str:
    """The page's text."""
    wanted = tuning.wanted
    title = f"{tuning.title}: {', '.join([wanted.objective, *(one.text for one in wanted.constraints)])}"
    verdicts = "".join(
        f'<p class="verdict{" bad" if text.startswith(("IMPOSSIBLE", "STOPPED", "FAILED")) else ""}">{escape(text)}</p>'
        for text in verdict_lines(tuning)
    )
    plots = "".join(draw(plot) for plot in _plots(tuning))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f'<p class="soft">Tuned by toutates tune, {escape(tuning.begun)}; {escape(tuning.load)}</p>{verdicts}'
        + "".join(f'<p class="soft">{escape(text)}</p>' for text in tuning.notes)
        + f'<h2>What was measured</h2><div class="plots">{plots}</div><h2>All configurations</h2>{_table(tuning)}'
        "</main></body></html>\n"
    )


def _plots(tuning: Tuning) -> list[Plot]:
    usable = [one for one in tuning.trials if not one.sample.fault and "p99" in one.sample.figures]
    if not usable:
        return []
    best = front(usable)
    # Each point is a line of its own, so that nothing joins them; the first one has the name for the legend.
    points = [Line("" if place else "measured", [_place(one)], 1) for place, one in enumerate(usable)]
    lines = [*points, Line("best of both", [_place(one) for one in best], 3, marked=True)]
    if tuning.final and "p99" in tuning.final[0]:
        both = [(one["rate"], one["p99"] / 1e6) for one in tuning.final]
        lines += [Line("as it is, in turns", both[:1], 4), Line("best, in turns", both[1:], 2)]
    bounds = [one for one in tuning.wanted.constraints if one.figure == "p99"]
    level = (bounds[0].bound / 1e6, bounds[0].text) if bounds else None
    plots = [Plot("Latency against throughput", "requests per second", "p99, ms", lines, log_y=True, level=level)]
    memory = [(one.sample.figures["rate"], one.sample.figures["memory"] / 1e6) for one in usable if _has_memory(one)]
    if memory:
        marks = [Line("", [point], 1) for point in memory]
        plots.append(Plot("Memory of the server against throughput", "requests per second", "MB", marks))
    return plots


def _has_memory(trial: Trial) -> bool:
    return "memory" in trial.sample.figures


def _place(trial: Trial) -> tuple[float, float]:
    return trial.sample.figures["rate"], trial.sample.figures["p99"] / 1e6


def _table(tuning: Tuning) -> str:
    ordered = sorted(tuning.trials, key=lambda one: (one.score.excess, -one.score.value))
    rows = [_cells(tuning, one) for one in ordered]
    head = "".join(f"<th>{text}</th>" for text in ("configuration", "requests/s", "p50, ms", "p99, ms", "memory, MB"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(tuning: Tuning, trial: Trial) -> Sequence[str]:
    name = tuning.shown_changes(trial.changes) or "as it is"
    if trial.sample.fault:
        return [f"{name}: {trial.sample.fault}", *["-"] * 4]
    figures = trial.sample.figures
    scales = (("rate", 1.0), ("p50", 1e6), ("p99", 1e6), ("memory", 1e6))
    return [name, *(shown(figures[key] / scale) if key in figures else "-" for key, scale in scales)]
