"""The plain form of ensembles in config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ensembles import MODELS, add_ensemble, add_graph, pbtxt, step
from toutates.command.config import effective_configuration
from toutates.command.main import main
from toutates.models.config.settings import load_settings
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError

PLAIN = """
backend: ensemble
batch_size: 8
max_inflight_requests: 4
inputs:
  RAW: {datatype: FP32, shape: [64]}
  BIAS: {datatype: FP32, shape: [1], optional: true}
outputs:
  SCORE: {datatype: BYTES, shape: [-1, 8]}
steps:
  - model: prep
    inputs: {IN: RAW, B: BIAS}
    outputs: {OUT: t0}
  - model: net
    version: 2
    inputs: {X: t0}
    outputs: {Y: SCORE}
"""


def read(folder: Path, text: str) -> ModelConfig:
    (folder / "config.yaml").write_text(text)
    settings = load_settings(folder, ["ensemble", "supertensor"])
    assert settings is not None
    assert settings.ensemble is not None
    return settings.ensemble


def test_the_plain_form_is_the_model_config_of_triton(tmp_path: Path) -> None:
    config = read(tmp_path, PLAIN)
    assert (config.platform, config.max_batch_size) == ("ensemble", 8)
    assert [(one.name, one.data_type, list(one.dims), one.optional) for one in config.input] == [
        ("RAW", 11, [64], False),
        ("BIAS", 11, [1], True),
    ]
    assert list(config.output[0].dims) == [-1, 8]
    first, second = config.ensemble_scheduling.step
    assert (first.model_name, first.model_version, dict(first.input_map)) == ("prep", -1, {"IN": "RAW", "B": "BIAS"})
    assert (second.model_name, second.model_version, dict(second.output_map)) == ("net", 2, {"Y": "SCORE"})
    assert config.ensemble_scheduling.max_inflight_requests == 4


def test_what_is_wrong_is_told_at_once_with_key_and_remedy(tmp_path: Path) -> None:
    text = "backend: ensemble\nstep: []\ninputs: {RAW: {datatype: FLOAT, shape: 3}}\nsteps: [{modl: a}, {inputs: {}}]\n"
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    for key in (
        "step: unknown key; did you mean `steps`?",
        "inputs.RAW.datatype",
        "inputs.RAW.shape",
        "steps[0].modl",
        "steps[0].model: required key is missing; add `model: prep`",
        "steps[1].model",
    ):
        assert key in said


@pytest.mark.parametrize("form", ["yaml", "pbtxt"])
def test_config_writes_both_forms_and_they_say_the_same(tmp_path: Path, form: str) -> None:
    config = pbtxt(
        ["RAW FP32 [64]", "BIAS FP32 [1] optional"],
        ["SCORE STRING [-1, 8]"],
        [step("prep", "IN=RAW", "B=BIAS", "OUT=t0"), step("net/2", "X=t0", "y=SCORE")],
        scheduling="max_inflight_requests: 4",
    )
    add_ensemble(tmp_path, "e", config)

    def settings() -> list[str]:
        text = effective_configuration(tmp_path / "e", None, "yaml")
        return [line for line in text.splitlines() if not line.startswith("#")]

    before, text = settings(), effective_configuration(tmp_path / "e", None, form)
    (tmp_path / "e" / "config.pbtxt").unlink()
    (tmp_path / "e" / ("1/config.yaml" if form == "yaml" else "config.pbtxt")).write_text(text)
    assert settings() == before


def test_config_draws_the_graph_of_an_ensemble_and_of_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_ensemble(tmp_path, "e", pbtxt(["RAW FP32 [64]"], ["SCORE FP32 [8]"], [step("net", "X=RAW", "y=SCORE")]))
    assert main(["config", str(tmp_path / "e"), "--graph"]) == 0
    assert capsys.readouterr().out.startswith("<svg ")
    add_graph(tmp_path, "double", MODELS["double"])
    assert main(["config", str(tmp_path / "double"), "--graph"]) != 0
    assert "--graph: is no ensemble (got 'double'); name the folder of one" in capsys.readouterr().err
