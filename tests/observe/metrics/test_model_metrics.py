"""Metrics that single models keep: those of the server keep their names, whatever the code of models calls its own."""

from __future__ import annotations

import pytest

from toutates.engine.model_metrics import COUNTER, ModelSeries
from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.model_families import _NOTHING
from toutates.observe.metrics.model_metrics import ModelMetrics
from toutates.observe.metrics.snapshot import Counts, VersionSnapshot

_NAME = "toutates_text_read_total"


def version(model: str, *series: ModelSeries) -> VersionSnapshot:
    return VersionSnapshot(model, "1", 1, 1, 0, Counts(), _NOTHING, own_metrics=series)


def counter(name: str, model: str, value: float, *, ours: bool) -> ModelSeries:
    return ModelSeries(name, COUNTER, "", (("model", model), ("version", "1")), (), (value,), ours=ours)


def test_code_of_a_model_cannot_write_metrics_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    versions = [
        version("forger", counter(_NAME, "texts", 1000, ours=False), counter("mine", "forger", 3, ours=False)),
        version("texts", counter(_NAME, "texts", 40, ours=True)),
        version("others", counter(_NAME, "others", 2, ours=True)),
    ]
    families = {one.spec.name: one for one in ModelMetrics().families(versions)}
    assert families.keys() == {_NAME, "mine"}
    assert families[_NAME].spec is CATALOGUE[_NAME]
    assert families[_NAME].series == [(("texts", "1"), 40), (("others", "1"), 2)]
    assert f"metric '{_NAME}' of model 'forger' is left out" in caplog.text
