"""Figures become medians, ratios, tables and plots, and a failed load becomes none of these."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.report import BEGIN, END, markdown, replace_generated, report_command
from bench.results import Cell, Results
from bench.summary import Spread, Summary
from tests.bench.support import CELL, figure, goodput, some_results


def test_a_spread_is_median_least_and_greatest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert str(Spread(2.0, 1.0, 3.0)) == "2.0 (1.0-3.0)"
    assert str(Spread(12345.6, 12345.6, 12345.6)) == "12,346"
    assert str(Spread(0.123, 0.1, 0.2)) == "0.12 (0.10-0.20)"


def test_ratios_are_taken_round_by_round() -> None:
    results = Results("name", "now", servers={"toutates": "", "grpc.aio": ""})
    # Medians of 10 and 100, of 100 and 300: a ratio of medians would be 3.6.
    results.figures += [figure("toutates", 1, 10), figure("toutates", 2, 100)]
    results.figures += [figure("grpc.aio", 1, 100), figure("grpc.aio", 2, 300)]
    assert Summary(results).ratio("toutates", CELL, "grpc.aio") == Spread(6.5, 3.0, 10.0)


def test_a_ratio_needs_the_baseline_in_the_same_round() -> None:
    results = Results("name", "now", servers={"toutates": "", "grpc.aio": ""})
    results.figures += [figure("toutates", 1, 10), figure("grpc.aio", 2, 300)]
    assert Summary(results).ratio("toutates", CELL, "grpc.aio") is None


def test_rest_is_shown_beside_grpc_and_fastapi() -> None:
    results = some_results()
    results.servers["fastapi"] = "that server over REST"
    cell = Cell("loads", "mlp", "json16x1")
    for number in (1, 2):
        results.figures.append(figure("toutates", number, 30.0, cell=cell))
        results.figures.append(figure("fastapi", number, 600.0, cell=cell))
    text = markdown(results)
    assert "How many times that fastapi takes, round by round:" in text
    assert "| toutates | 20.0 |" in text
    assert "| toutates | 5,000 / 5,000 |" in text
    assert "| fastapi | 5,000 / - |" in text
    # The same server's gRPC took 10 and 20 in these rounds.
    assert "| toutates | 2.2 (1.5-3.0) |" in text


def test_a_server_that_failed_in_one_round_has_no_figure() -> None:
    summary = Summary(some_results())
    assert summary.servers([CELL]) == ["toutates", "grpc.aio"]
    assert summary.figures("broken", CELL) == []


def test_results_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    results = some_results()
    results.save(tmp_path / "name.json")
    assert Results.read(tmp_path / "name.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["name.json"]


def test_the_report_has_figures_ratios_failures_and_what_was_left_out() -> None:
    text = markdown(some_results())
    assert "| toutates | 15.0 (10.0-20.0) |" in text
    assert "| toutates | 7.5 (5.0-10.0) |" in text
    assert "**No figure** for broken, mlp, 16x1, round 2: a sampled answer is / wrong" in text
    assert "- mlserver: PyPI brings it" in text
    assert "| toutates, mlp | 10.0, batch 2.5 | 20.0, batch 2.5 |" in text
    assert "| toutates | 70.2 (12) | 71.5 (12) |" in text
    assert "did not reach its end" not in text
    assert not re.search(r"^\| broken \| \d", text, re.MULTILINE)


def test_goodput_is_shown_with_what_was_to_be_reached() -> None:
    results = some_results()
    for way, figures in {"in order": (690, 1_000, 20), "target": (695, 950, 900)}.items():
        results.goodput += [goodput(way, at, rate) for at, rate in zip((70, 100, 300), figures, strict=True)]
    text = markdown(results)
    assert "| in order | 690 (98.6%) | 1,000 (100.0%) | 20.0 (0.7%) |" in text
    assert "- in order: 98.6% in time at 70 % of saturation; 99% is missed" in text
    assert "- in order: 2.0% of its best goodput at 300 % (20.0 a second); 90% is missed" in text
    assert "- target: 99.3% in time at 70 % of saturation; 99% is reached" in text
    assert "- target: 94.7% of its best goodput at 300 % (900 a second); 90% is reached" in text
    assert "| target, large | 25% | 25% | 25% |" in text


def test_what_the_best_orders_could_do_stands_beside_goodput() -> None:
    results = some_results()
    results.goodput += [goodput("in order", 70, 690, best_share=0.992, at_once_share=0.99), goodput("target", 70, 692)]
    results.goodput += [goodput("in order", 300, 20), goodput("target", 300, 900)]
    text = markdown(results)
    assert "| the best order, simulated | 99.2% | - |" in text
    assert "| refused at once, simulated | 99.0% | - |" in text
    told = "by simulation at most about 99.2%, or 99.0% where requests are refused at once; 99% is missed"
    assert f"- target: 98.9% in time at 70 % of saturation, {told}" in text


def test_a_load_whose_client_was_late_has_no_part_in_the_curves() -> None:
    results = some_results()
    results.goodput += [goodput("in order", 70, 690), goodput("in order", 100, 5, has_verdict=False)]
    text = markdown(results)
    assert "1 of 2 loads have no verdict, because the client itself was late." in text
    assert "| in order | 690 (98.6%) |\n" in text


def test_the_report_of_an_interrupted_run_says_so() -> None:
    results = some_results()
    results.finished = ""
    assert "did not reach its end" in markdown(results)


def test_the_report_of_a_run_that_measured_nothing_can_be_read() -> None:
    text = markdown(Results("name", "2026-11-20T12:00:00Z"))
    assert "Measured on 2026-11-20" in text


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = replace_generated(page, "new")
    assert once == f"before\n{BEGIN}\n\nnew\n{END}\nafter\n"
    assert replace_generated(once, "new") == once


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{END}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_a_pair_of_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="must hold the lines"):
        replace_generated(page, "new")


def test_the_documentation_has_the_markers() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "measurements.md"
    assert "new" in replace_generated(page.read_text(encoding="utf-8"), "new")


def test_the_report_command_fills_a_page_and_keeps_the_raw_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Frame.\n{BEGIN}\n{END}\nEnd.\n", encoding="utf-8")
    some_results().save(tmp_path / "name.json")
    assert report_command([str(tmp_path / "name.json"), "--page", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("Frame.")
    assert text.endswith("End.\n")
    assert Results.read(tmp_path / "page" / "name.json") == some_results()
    plots = re.findall(r"!\[[^]]*\]\((page/[^)]+)\)", text)
    assert all((tmp_path / plot).is_file() for plot in plots)
    figures = len(some_results().figures)
    assert capsys.readouterr().out == f"{page}: {figures} figures; {len(plots)} plots in {tmp_path / 'page'}\n"


def test_a_run_of_some_parts_replaces_those_parts_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    some_results().save(tmp_path / "first.json")
    assert report_command([str(tmp_path / "first.json"), "--page", str(page)]) == 0
    later = replace(some_results().without({"loads", "memory"}), name="later", started="2026-11-22T12:00:00Z")
    later.figures = [replace(figure, user_us=1_000.0, system_us=234.0) for figure in later.figures]
    later.save(tmp_path / "second.json")
    assert report_command([str(tmp_path / "second.json"), "--page", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    before, after = text.split("## Measured on 2026-11-22")
    assert "| toutates | 15.0 (10.0-20.0) |" in before
    assert "Number of models" not in before
    assert "Idle connections" not in before
    assert "Idle connections" in after
    assert "1,234" in after
    assert sorted(file.name for file in (tmp_path / "page").glob("*.json")) == ["later.json", "name.json"]
    assert Results.read(tmp_path / "page" / "name.json").parts() == some_results().parts() - later.parts()
    assert all((tmp_path / plot).is_file() for plot in re.findall(r"!\[[^]]*\]\((page/[^)]+)\)", text))


@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_the_report_command_refuses_what_is_no_run(content: str | None, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    if content is not None:
        (tmp_path / "name.json").write_text(content, encoding="utf-8")
    assert report_command([str(tmp_path / "name.json"), "--page", str(page)]) == 2
    assert page.read_text(encoding="utf-8") == f"{BEGIN}\n{END}\n"


def test_plots_are_the_same_for_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.plots import draw_plots

    results = some_results()
    for model in ("magika", "resnet"):
        for number in (1, 2):
            results.figures.append(figure("toutates", number, 50, cell=Cell("loads", model, "16x1")))
    results.goodput += [goodput(way, at, 700) for way in ("in order", "target") for at in (70, 100)]
    names = [name for name, _ in draw_plots(results, tmp_path / "a")]
    assert names == [
        *("cpu-16x1.svg", "models.svg", "latency.svg", "connections-swept.svg", "goodput-toutates-poisson.svg"),
        "memory.svg",
    ]
    draw_plots(results, tmp_path / "b")
    for name in names:
        drawn = (tmp_path / "a" / name).read_bytes()
        assert drawn == (tmp_path / "b" / name).read_bytes()
        width = re.search(rb'width="([\d.]+)pt"', drawn)
        assert width is not None
        assert float(width[1]) < 800


def test_texts_have_cpu_rate_and_padding_by_their_lengths() -> None:
    results = Results("name", "now", servers={"toutates": "", "fastembed": ""})
    for distribution, padded in (("short", 1.2), ("mix", 1.1)):
        cell = Cell("text", distribution, "64x1")
        results.figures.append(replace(figure("toutates", 1, 3_000, cell=cell), padded=padded))
        results.figures.append(figure("fastembed", 1, 4_000, cell=cell))
    text = markdown(results)
    assert "|  | short | mix |" in text
    assert "| toutates | 3,000 | 3,000 |" in text
    assert "| toutates | 1.2 | 1.1 |" in text
    assert "| fastembed | - |" not in text


def test_a_short_text_has_what_it_takes_beside_tokenizing_and_inference() -> None:
    results = Results("name", "now", servers={"toutates": ""})
    for connections in (16, 64):
        made = figure("toutates", 1, 25, cell=Cell("text", "one", f"{connections}x1"))
        results.figures.append(replace(made, tokenizing_us=9.0, inference_us=2.5))
    results.figures.append(replace(figure("toutates", 1, 3_000, cell=Cell("text", "mix", "64x1"))))
    text = markdown(results)
    assert "|  | mix |" in text
    assert "|  | connections | CPU | tokenizing | inference | the rest | texts of a batch | p50 µs |" in text
    assert "| toutates | 16 | 25.0 | 9.0 | 2.5 | 13.5 |" in text
    assert "| toutates | 64 | 25.0 | 9.0 | 2.5 | 13.5 |" in text
