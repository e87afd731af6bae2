"""The benchmark as a command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tritonclient.grpc")

from bench.options import Options
from bench.results import Results

ROOT = Path(__file__).resolve().parents[2]
WRONG_SERVER = Path(__file__).parent / "wrong_server.py"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.long
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_a_run_measures_right_servers_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    wrong = tmp_path / "python"
    wrong.write_text(f'#!/bin/sh\nexec {sys.executable} {WRONG_SERVER} "$@"\n')
    wrong.chmod(0o755)
    done = run(
        *("--quick", "--rounds", "1", "--seconds", "0.1", "--loads", "16x1"),
        *("--servers", "toutates,grpc.aio", "--server", f"wrong={wrong}"),
        *("--results", str(tmp_path), "--name", "short"),
    )
    assert done.returncode == 1, done.stderr
    results = Results.read(tmp_path / "short.json")
    assert results.finished
    assert sorted(figure.server for figure in results.figures) == ["grpc.aio", "toutates"]
    assert all(figure.cpu_us > 0 and figure.p99_us >= figure.p50_us > 0 for figure in results.figures)
    assert [(failure.server, "is wrong" in failure.why) for failure in results.failures] == [("wrong", True)]
    text = (tmp_path / "short.md").read_text(encoding="utf-8")
    assert "**No figure** for wrong" in text
    assert text in done.stdout


@pytest.mark.long
def test_a_run_without_tools_says_which_packages_bring_them(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = run(
        *("--quick", "--servers", "toutates,nghttpd,toutates-3.14t", "--python314t", "/nonexistent"),
        *("--results", str(tmp_path), "--name", "none"),
        PATH=str(tmp_path / "bin"),
    )
    assert done.returncode == 1, done.stderr
    left_out = {entry.what: entry.why for entry in Results.read(tmp_path / "none.json").left_out}
    assert "apt-get install nghttp2-client" in left_out["h2load"]
    assert "apt-get install nghttp2-server" in left_out["nghttpd"]
    assert "no free-threaded Python" in left_out["toutates-3.14t"]
    assert "apt-get install nghttp2-client" in done.stderr
    assert "apt-get install nghttp2-client" in (tmp_path / "none.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--servers", "nosuch"],
        ["--loads", "16"],
        ["--loads", "pa0"],
        ["--models", ""],
        ["--rounds", "0"],
        ["--seconds", "0"],
        ["--server", "name"],
        ["--server", "toutates=python"],
    ],
)
def test_options_that_cannot_be_used_end_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        Options.parse(arguments)
    assert end.value.code == 2


def test_the_smallest_model_gets_all_loads_and_the_others_some() -> None:
    options = Options.parse([])
    assert "pa64-own" in options.loads_of("mlp")
    assert options.loads_of("resnet") == ("16x1", "1x1", "pa16")
    assert Options.parse(["--loads", "2x2"]).loads_of("resnet") == ("2x2",)
    assert Options.parse(["--quick"]).loads_of("mlp") == ("1x64", "16x1")
