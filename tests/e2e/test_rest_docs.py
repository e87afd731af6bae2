"""The commands of docs/rest.md, run as they stand but for the port, and the answers that it shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.control import EXPLICIT
from tests.e2e.process import ROOT, ServerProcess, running

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

PAGE: Final = (ROOT / "docs" / "rest.md").read_text()
#: Commands, and what they print where the page shows it.
BLOCKS: Final = re.findall(r"^```sh\n(.*?)^```\n(?:\n```json\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def shown_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server that the page starts."""
    root = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(ROOT / "examples" / "make_repository.py"), str(root)], check=True, timeout=120)
    flags = ["--http-addr", "127.0.0.1:0", *EXPLICIT, "--load-model", "*"]
    with running(root, tmp_path_factory.mktemp("shown_server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize(
    ("commands", "shown"), BLOCKS, ids=[block[0].split("localhost:8000")[1].split()[0] for block in BLOCKS]
)
def test_the_commands_of_the_page_work(commands: str, shown: str, shown_server: ServerProcess, tmp_path: Path) -> None:
    refused = "%{http_code}" in commands
    fail = "" if refused else "--fail-with-body "
    # Answers end without a line break, which terminals show; here each gets one.
    script = f'set -euo pipefail\ncurl() {{ command curl -sS {fail}--max-time 60 "$@"; }}\n'
    script += commands.replace("localhost:8000", f"127.0.0.1:{shown_server.rest_port}")
    script = re.sub(r"^(curl [^|]*?)(?=\n(?:curl|\Z))", r"\1\necho", script, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    output = done.stdout.decode()
    assert done.returncode == 0, output + done.stderr.decode()
    if shown:
        assert lines(output) == lines(shown)
    elif refused:
        assert re.findall(r'\{"error":".+?"\} (\d{3})', output) == ["400", "404", "501"]


def test_the_page_has_an_example_of_every_endpoint() -> None:
    paths = (
        "/v2 ",
        "/ready",
        "/live",
        "/config",
        "/stats",
        "/infer",
        "/generate ",
        "/generate_stream",
        "/index",
        "/load",
    )
    commands = "".join(commands.replace("\n", " \n") for commands, _ in BLOCKS)
    for path in (*paths, "/unload", "/logging", "/trace/setting", "--compressed", "Inference-Header-Content-Length: 0"):
        assert path in commands, path
