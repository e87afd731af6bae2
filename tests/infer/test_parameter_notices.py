"""Parameters of requests that have no effect: what is said of them, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from toutates.infer import parameter_notices as module
from toutates.infer.parameter_notices import MAX_NAMES, ParameterNotices
from toutates.protocol.grpc_service_pb2 import InferParameter


def parameters(**values: dict[str, Any]) -> dict[str, InferParameter]:
    return {key: InferParameter(**value) for key, value in values.items()}


STATE = "the model has no sequences"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (parameters(timeout={"int64_param": 5}), {"timeout": "send a deadline (tritonclient: client_timeout)"}),
        (parameters(priority={"uint64_param": 1}), {"priority": "the model's configuration has no priorities"}),
        (
            parameters(sequence_id={"string_param": "a"}, sequence_start={"bool_param": True}),
            {"sequence_id": STATE, "sequence_start": STATE},
        ),
        (parameters(own={"double_param": 0.0}), {"own": "models get no parameters"}),
        # What asks for nothing; tritonclient's C++ library sends the last one with every request.
        (parameters(timeout={"int64_param": 0}, priority={"int64_param": 0}), {}),
        (parameters(sequence_id={"int64_param": 0}, sequence_end={"bool_param": False}), {}),
        (parameters(triton_enable_empty_final_response={"bool_param": True}), {}),
    ],
)
def test_each_parameter_without_effect_is_a_line_with_the_reason(
    caplog: pytest.LogCaptureFixture, given: dict[str, InferParameter], said: dict[str, str]
) -> None:
    ParameterNotices().note("m", given)
    assert len(caplog.messages) == len(said)
    for name, reason in said.items():
        [line] = [line for line in caplog.messages if f"'{name}'" in line]
        assert line.startswith(f"requests for model 'm' have the parameter '{name}', which has no effect: ")
        assert reason in line


def test_a_parameter_is_said_once_for_each_model(caplog: pytest.LogCaptureFixture) -> None:
    notices = ParameterNotices()
    for model in ("a", "b", "a", "b"):
        notices.note(model, parameters(timeout={"int64_param": 5}))
    assert len(caplog.messages) == 2


def test_names_that_clients_make_up_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    notices = ParameterNotices()
    for number in range(1_000):
        notices.note("m", parameters(**{f"{'x' * 1_000}{number}": {"bool_param": True}}))
    assert len(caplog.messages) == MAX_NAMES
    assert max(map(len, caplog.messages)) < 200


def test_models_that_are_remembered_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MODELS", 2)
    notices = ParameterNotices()
    for model in ("a", "b", "c", "a"):
        notices.note(model, parameters(timeout={"int64_param": 5}))
        notices.note(model, parameters(priority={"int64_param": 5}))
    assert len(caplog.messages) == 4
    assert not any("'c'" in line for line in caplog.messages)
