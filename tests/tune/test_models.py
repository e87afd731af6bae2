"""Which models are tuned, and what ensembles ask of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toutates.command.tune.models import Found, OneModel
from toutates.models.repository import VersionFolder


def one(**base: Any) -> OneModel:
    return OneModel(Path("m"), VersionFolder(1, Path("m/1"), Path("m/1/model.onnx")), base)


@pytest.mark.parametrize(
    ("ensembles", "rows"),
    [
        ([], 1),
        ([{"batch_size": 16, "steps": [{"model": "other"}]}], 1),
        ([{"batching": False, "steps": [{"model": "network"}]}], 1),
        ([{"batch_size": 16, "steps": [{"model": "network"}]}, {"batch_size": 4, "steps": [{"model": "network"}]}], 16),
    ],
)
def test_a_member_takes_the_rows_of_the_largest_ensemble_with_it(ensembles: list[dict[str, Any]], rows: int) -> None:
    found = Found(tuned={"network": one(backend="supertensor", batch_size=8)})
    found.served = {f"e{number}": one(backend="ensemble", **each) for number, each in enumerate(ensembles)}
    found.served["decode"] = one(backend="python")
    assert found.rows_of_ensembles("network") == rows
