"""docs/migrating-from-triton.md and docs/model-repository.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from toutates.models.settings import ModelSettings, SessionSettings
from toutates.models.triton_fields import FIELDS, PARAMETERS

DOCS = Path(__file__).parent.parent / "docs"


def rows(name: str, section: str = "") -> list[list[str]]:
    """The cells of every row of every table, or of those of one section."""
    text = (DOCS / name).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = text.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_field_of_the_configuration_is_listed_with_its_verdict() -> None:
    verdicts = {rule.verdict.value for rule in FIELDS.values()}
    listed = {names(row[0])[0]: row[1] for row in rows("migrating-from-triton.md") if row[1] in verdicts}
    assert listed == {path: rule.verdict.value for path, rule in FIELDS.items()}


def test_every_parameter_is_listed() -> None:
    table = rows("migrating-from-triton.md")
    start = next(at for at, row in enumerate(table) if row[0] == "key of `parameters`")
    listed = [name for row in table[start + 1 :] for name in names(row[0])]
    assert listed == list(PARAMETERS)


def test_every_key_of_config_yaml_is_listed() -> None:
    table = rows("model-repository.md", "config.yaml")
    listed = [name for row in table if row[0].startswith("`") for name in names(row[0])]
    assert listed == ["backend", *ModelSettings.__dataclass_fields__]
    text = (DOCS / "model-repository.md").read_text()
    for key in SessionSettings.__dataclass_fields__:
        assert f"\n  {key}: " in text
