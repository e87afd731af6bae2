"""docs/flags.md, operating.md, reliability.md and README.md say what the command line, the plans and the tests do."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.engine.shown import shown_version
from tests.machines import LAPTOP, XEON, install
from toutates.api.restrictions import PROTOCOLS
from toutates.command.flags import ALIASES, FLAGS, LIMIT, LIMITS, Flag
from toutates.models.table import ModelEntry, ModelState, ModelTable, VersionEntry
from toutates.protocol.signature import Signature
from toutates.server.startup_table import placement_table
from toutates.system.placement import place
from toutates.system.topology import read_topology

ROOT = Path(__file__).parent.parent
OPERATING = (ROOT / "docs" / "operating.md").read_text()
FLAGS_PAGE = (ROOT / "docs" / "flags.md").read_text()
README = (ROOT / "README.md").read_text()


def rows(text: str, section: str) -> list[list[str]]:
    """The cells of every row of a section's tables, but for their heads."""
    body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", body, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def listed(text: str, section: str = "Flags") -> dict[str, list[str]]:
    """Flags of a page's table, and the cells of their rows."""
    of_flags = [row for row in rows(text, section) if "--" in row[0]]
    return {re.split(r"[ =\[]", name)[0][2:]: row for row in of_flags for name in names(row[0])}


def test_the_page_of_flags_is_what_the_table_of_flags_makes() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "flags.py"))
    assert made["page"]() == FLAGS_PAGE, "run python docs/flags.py"


def test_every_flag_is_documented_and_none_that_is_not_there() -> None:
    assert set(listed(FLAGS_PAGE)) == set(FLAGS)
    limits = {names(row[0])[0].partition("=")[0]: names(row[3])[0] for row in rows(FLAGS_PAGE, "Limits")[1:] if row[3]}
    limits.pop("NAME", None)
    assert set(limits) == set(LIMITS)
    assert {flag.split()[0][2:]: (LIMIT + name,) for name, flag in limits.items()}.items() <= ALIASES.items()
    assert all(f"`--{name}" in FLAGS_PAGE for name in ALIASES)


def agrees(flag: Flag, cell: str) -> bool:
    return flag.default is None or re.match(rf"`?{re.escape(flag.default)}\b", cell) is not None


def test_documented_defaults_are_the_defaults() -> None:
    for name, row in listed(FLAGS_PAGE).items():
        assert row[1] == f"`TOUTATES_{name.upper().replace('-', '_')}`"
        assert agrees(FLAGS[name], row[2]), row
    for name, row in listed(README).items():
        assert agrees(FLAGS[name], row[1]), row


def test_every_group_of_rpcs_that_can_be_restricted_is_documented() -> None:
    table = [row for row in rows(OPERATING, "Access") if row[0].startswith("`")]
    assert {name for row in table for name in names(row[0])} == set(PROTOCOLS)


@pytest.mark.parametrize(
    ("machine", "executor_cpus", "workers", "intra", "executors"), [(XEON, 2, 7, 3, 4), (LAPTOP, 1, 3, 1, 1)]
)
def test_the_plans_shown_are_those_that_are_made(
    machine: str, executor_cpus: int, workers: int, intra: int, executors: int, tmp_path: Path
) -> None:
    topology = read_topology(range(16), install(tmp_path, machine))
    plan = place(topology, executor_cpus=executor_cpus, processing_cores=workers, intra_threads=intra, pinned=True)
    served = shown_version("m", 1, Signature((), (), True), executors=executors, pool_threads=executors * (intra - 1))
    table = ModelTable({"m": ModelEntry("m", {1: VersionEntry(1, ModelState.READY, served=served)})})
    assert f"```\n{placement_table(plan, table)}\n```" in OPERATING


def test_every_fault_names_tests_that_are_there() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = re.findall(r"def (test_\w+)", written)
    table = rows((ROOT / "docs" / "reliability.md").read_text(), "Faults")[1:]
    shown = [name for row in table for name in names(row[3]) if not name.endswith(".py")]
    assert len(shown) > 20
    assert [name for name in shown if not any(name in test for test in tests)] == []
