"""What many models take: the report of it, and a run with servers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.density_report import ALONE, AMONG, density_rows
from bench.options import Options
from bench.report import markdown
from bench.results import Cell, DensityFigure, Results
from tests.bench.support import figure

FEW = DensityFigure("toutates", 1, 100.0, 101.0, 1.5, 6, 0.0, 50_000, 4.0, 5.0)
MANY = DensityFigure("toutates", 1025, 228.0, 240.0, 4.572, 6, 0.0125, 1_600_000, 40.0, 130.0)


def results_of(*density: DensityFigure) -> Results:
    """A run in which the model among others costs 1.04 times what it costs alone."""
    results = Results("name", "2026-11-20T12:00:00Z", servers={"toutates": "this server"})
    results.density += density
    for one in density:
        for number, alone in ((1, 20.0), (2, 30.0)):
            cell = Cell("density", ALONE, "16x1", one.models)
            results.figures.append(figure("toutates", number, alone, cell=cell))
            ours = figure("toutates", number, alone * 1.04, cell=Cell("density", AMONG, "16x1", one.models))
            results.figures.append(replace(ours, p50_us=130.0))
    return results


def test_what_a_model_takes_is_the_difference_between_rows() -> None:
    few, many = density_rows(results_of(MANY, FEW))["toutates"]
    assert (few.figure, many.figure) == (FEW, MANY)
    assert (few.kib, few.load_ms) == (None, None)
    assert many.kib == 128
    assert many.load_ms == pytest.approx(3.0)
    assert many.cpu_ratio is not None
    assert many.cpu_ratio.least == pytest.approx(1.04)
    assert [round(ratio or 0.0, 3) for ratio in many.medians()] == [1.3, 1.04]


def test_the_report_says_what_was_reached() -> None:
    text = markdown(results_of(FEW, MANY))
    assert "| 1,025 | 228 | 128 | 240 | 4.6 | 3.00 | 6 | 1.25 | 130 | 1.30 (1.30-1.30) | 26.0 |" in text
    assert "- 128 KiB for each further model; 160 is reached" in text
    assert "- 3.00 ms of CPU for a load; 1 is missed" in text
    assert "- 6 threads with 1 and 6 with 1,025 models; as many is reached" in text
    assert "- metrics of 1.60 MB in 130 ms; 2 MB in 100 ms is missed" in text
    assert "- p50 of a model among 1,025 is 1.30 times that alone; 1.1 is missed" in text
    assert "- CPU of a model among 1,025 is 1.04 times that alone; 1.05 is reached" in text


def test_density_is_a_part_and_stays_when_others_are_measured_anew(tmp_path: Path) -> None:
    results = results_of(FEW, MANY)
    assert results.parts() == {"density"}
    assert results.has_figures
    assert not results.without({"density"}).has_figures
    results.save(tmp_path / "name.json")
    assert Results.read(tmp_path / "name.json") == results


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.plots import draw_plots

    assert [name for name, _ in draw_plots(results_of(FEW, MANY), tmp_path)] == ["density.svg"]
    assert draw_plots(results_of(FEW), tmp_path) == []


def test_numbers_of_models_come_from_the_command_line() -> None:
    assert Options.parse(["--density-models", "1,50"]).density_models == (1, 50)
    assert Options.parse([]).density_models[-1] == 10_000
    assert Options.parse(["--quick"]).density_models[-1] == 1_000


@pytest.mark.long
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (Debian: nghttp2-client)")
def test_a_server_of_many_models_has_about_the_threads_of_one_of_few(tmp_path: Path) -> None:
    from bench.session import Session

    chosen = ["--parts", "density", "--servers", "toutates", "--density-models", "2,40", "--rounds", "1"]
    options = Options.parse([*chosen, "--seconds", "0.3", "--environments", str(tmp_path / "environments")])
    results = Results("name", "now")
    Session(options, results, tmp_path / "name.json").run()
    assert results.failures == []
    few, many = results.density
    assert (few.models, many.models) == (2, 40)
    # Some threads are there for a while alone: those that wait for files, and of the pool for runs that last.
    assert many.threads - few.threads < 20
    assert min(many.resident_mib, few.resident_mib) > 0
    assert few.metrics_bytes > 10_000
    assert many.burst_metrics_ms > 0
    assert {one.cell.model for one in results.figures} == {AMONG, ALONE}
    assert "**toutates**" in markdown(results)
