"""docs/operating.md, docs/reliability.md and README.md say what the command line, the plans and the tests do."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, cast

import pytest

from tests.machines import LAPTOP, XEON, install
from toutates.api.restrictions import PROTOCOLS
from toutates.command.flags import server_parser
from toutates.models.config.settings import ModelSettings
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.protocol.signature import Signature
from toutates.server.startup_table import placement_table
from toutates.system.placement import place
from toutates.system.topology import read_topology

ROOT = Path(__file__).parent.parent
OPERATING = (ROOT / "docs" / "operating.md").read_text()
README = (ROOT / "README.md").read_text()


def rows(text: str, section: str) -> list[list[str]]:
    """The cells of every row of a section's tables, but for their heads."""
    body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", body, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def flags() -> dict[str, argparse.Action]:
    """What ``--help`` shows, by the flags' names."""
    shown = [action for action in server_parser()._actions if action.help is not argparse.SUPPRESS]
    return {action.option_strings[-1]: action for action in shown if action.dest not in ("help", "version")}


def listed(text: str) -> dict[str, str]:
    """Flags of a page's table, and the cell that has their defaults."""
    of_flags = [row for row in rows(text, "Flags") if "--" in row[0]]
    return {re.split(r"[ =\[]", name)[0]: row[1] for row in of_flags for name in names(row[0])}


def test_every_flag_is_documented_and_none_that_is_not_there() -> None:
    assert set(listed(OPERATING)) == set(flags())


@pytest.mark.parametrize("text", [OPERATING, README], ids=["operating.md", "README.md"])
def test_documented_defaults_are_the_defaults(text: str) -> None:
    for flag, cell in listed(text).items():
        default = flags()[flag].default
        if default in (None, ""):
            continue
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
        assert re.match(rf"`?{re.escape(shown)}\b", cell), f"{flag}: {cell}"


def test_every_group_of_rpcs_that_can_be_restricted_is_documented() -> None:
    table = [row for row in rows(OPERATING, "Access") if row[0].startswith("`")]
    assert {name for row in table for name in names(row[0])} == set(PROTOCOLS)


@pytest.mark.parametrize(
    ("machine", "executor_cores", "workers", "intra", "executors"), [(XEON, 2, 7, 3, 4), (LAPTOP, 1, 3, 1, 1)]
)
def test_the_plans_shown_are_those_that_are_made(
    machine: str, executor_cores: int, workers: int, intra: int, executors: int, tmp_path: Path
) -> None:
    topology = read_topology(range(16), install(tmp_path, machine))
    plan = place(topology, executor_cores=executor_cores, processing_cores=workers, intra_threads=intra, pinned=True)
    nothing = cast(Any, None)
    settings = ModelSettings(num_executors=executors)
    served = ServedVersion("m", 1, Signature((), (), True), settings, nothing, nothing, nothing)
    table = ModelTable({"m": ModelEntry("m", {1: VersionEntry(1, ModelState.READY, served=served)})})
    assert f"```\n{placement_table(plan, table, intra)}\n```" in OPERATING


def test_every_fault_names_tests_that_are_there() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = re.findall(r"def (test_\w+)", written)
    table = rows((ROOT / "docs" / "reliability.md").read_text(), "Faults")[1:]
    shown = [name for row in table for name in names(row[3]) if not name.endswith(".py")]
    assert len(shown) > 20
    assert [name for name in shown if not any(name in test for test in tests)] == []
