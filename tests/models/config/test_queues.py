"""Priorities and queue policies: read from both files, written again, and refused in Triton's words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from google.protobuf import text_format

from toutates.engine.policies.rules import BatchingRules, QueuePolicy
from toutates.models.config.pbtxt import parse_pbtxt
from toutates.models.config.queues import (
    NO_POLICIES,
    PolicySettings,
    QueueSettings,
    acts_on,
    batching_rules,
    keeps_requests_apart,
    waiting_requests,
)
from toutates.models.config.settings import ModelSettings, load_settings
from toutates.models.config.triton_configuration import TritonConfiguration, triton_configuration
from toutates.models.config.yaml_writer import write_yaml
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError

SOURCE = Path("models/m/config.pbtxt")
YAML = "backend: supertensor\nbatch_size: 8\ncapacity: 16\nnum_executors: 1\nallocator: cpu\n"
MOST = 2**64 - 1

POLICIES = PolicySettings(
    levels=3,
    default_level=2,
    default=QueueSettings(0, 1_000_000, "reject", True),
    queues=MappingProxyType({1: QueueSettings(4, 500_000, "delay", False), 3: QueueSettings(0, 0)}),
)
PBTXT = """
  priority_levels: 3 default_priority_level: 2
  default_queue_policy { max_queue_size: 8 default_timeout_microseconds: 1000000 allow_timeout_override: true }
  priority_queue_policy {
    key: 1 value { timeout_action: DELAY default_timeout_microseconds: 500000 max_queue_size: 4 }
  }
  priority_queue_policy { key: 3 value {} }
"""
AS_YAML = """\
max_queue_size: 8
priority_levels: 3
default_priority: 2
queue_timeout_us: 1000000
allow_timeout_override: true
priority_queues:
  1: {max_queue_size: 4, queue_timeout_us: 500000, queue_timeout_action: delay}
  3: {}
"""


def triton(text: str) -> TritonConfiguration:
    return triton_configuration(parse_pbtxt(f"max_batch_size: 8 dynamic_batching {{ {text} }}", SOURCE), "m", SOURCE)


def own(folder: Path, text: str) -> ModelSettings:
    (folder / "config.yaml").write_text(YAML + text)
    settings = load_settings(folder)
    assert settings is not None
    return settings


def test_both_files_say_the_same(tmp_path: Path) -> None:
    configuration = triton(PBTXT)
    assert configuration.settings.policies == own(tmp_path, AS_YAML).policies == POLICIES
    assert configuration.settings.max_queue_size == 8
    assert configuration.warning == ""


@pytest.mark.parametrize("policies", [POLICIES, NO_POLICIES, PolicySettings(MOST, MOST)])
def test_settings_are_read_as_they_were_written(tmp_path: Path, policies: PolicySettings) -> None:
    settings = ModelSettings(backend="supertensor", policies=policies, max_queue_size=8)
    text = write_yaml(settings)
    (tmp_path / "config.yaml").write_text(text)
    assert load_settings(tmp_path) == settings
    assert ("priority_levels" in yaml.safe_load(text)) is (policies is not NO_POLICIES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("preferred_batch_size: 0", "dynamic batching preferred size must be positive for m"),
        ("preferred_batch_size: 9", "dynamic batching preferred size must be <= max batch size for m"),
        ("priority_levels: 3", "default priority level must be in range [1, 3] for m"),
        ("priority_levels: 3 default_priority_level: 4", "default priority level must be in range [1, 3] for m"),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }",
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
    ],
)
def test_triton_refuses_the_same_in_the_same_words(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        triton(text)
    said = str(caught.value)
    assert said.startswith(f"{SOURCE}: dynamic_batching.")
    assert problem in said


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("priority_levels: 2\n", "default_priority", "must be in range [1, 2]"),
        ("priority_levels: -1\n", "priority_levels", "is not an integer from 0 to"),
        ("queue_timeout_us: soon\n", "queue_timeout_us", "is not an integer from 0 to"),
        (f"queue_timeout_us: {MOST + 1}\n", "queue_timeout_us", "is not an integer from 0 to"),
        ("queue_timeout_action: drop\n", "queue_timeout_action", "must be reject or delay"),
        ("priority_queues: {1: {}}\n", "priority_queues", "must have priority level in range [1, 0]"),
        (
            "priority_levels: 1\ndefault_priority: 1\npriority_queues: {high: {}}\n",
            "priority_queues",
            "must have priority level in range [1, 1]",
        ),
        ("priority_queues: {1: {size: 1}}\n", "priority_queues.1.size", "unknown key"),
        (
            "priority_levels: 2\ndefault_priority: 2\npreserve_ordering: true\n",
            "priority_levels",
            "Only one priority level is allowed",
        ),
        (
            "queue_timeout_us: 1\nqueue_timeout_action: delay\npreserve_ordering: true\n",
            "queue_timeout_action",
            "can not have DELAY",
        ),
        ("queue_timeout_us: 1\npadding: {inputs: {x: {}}}\n", "padding", "stands beside"),
        ("priority_levels: 1\ndefault_priority: 1\nsequences: {strategy: direct}\n", "sequences", "stands beside"),
    ],
)
def test_a_config_yaml_that_cannot_be_used_is_refused_by_key(tmp_path: Path, text: str, key: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        own(tmp_path, text)
    said = str(caught.value)
    assert f"config.yaml: {key}: " in said
    assert problem in said


def test_as_with_triton_policies_of_priorities_mean_nothing_without_levels() -> None:
    assert triton("priority_queue_policy { key: 3 value { max_queue_size: 1 } }").settings.policies == NO_POLICIES


@pytest.mark.parametrize(
    ("text", "waiting"),
    [
        ("", 0),
        ("default_queue_policy { max_queue_size: 5 }", 5),
        ("priority_levels: 3 default_priority_level: 1 default_queue_policy { max_queue_size: 5 }", 15),
        (PBTXT, 0),
        (PBTXT.replace("key: 3 value {}", "key: 3 value { max_queue_size: 1 }"), 13),
    ],
)
def test_there_is_room_for_the_rows_of_all_requests_that_may_wait(text: str, waiting: int) -> None:
    settings = triton(text).settings
    assert waiting_requests(settings.policies, settings.max_queue_size) == waiting
    settings = triton(text.replace("max_queue_size: 5", "max_queue_size: 5000")).settings
    if "max_queue_size: 5" in text:
        assert settings.capacity >= 5_000


def test_only_models_that_ask_for_it_have_rules() -> None:
    def rules(settings: ModelSettings) -> BatchingRules | None:
        return batching_rules(
            settings.policies, settings.max_queue_size, settings.preferred_batch_sizes, 8, settings.max_queue_delay_us
        )

    plain = "max_queue_delay_microseconds: 100 default_queue_policy { max_queue_size: 5 }"
    for text in ("", plain, "preferred_batch_size: 8", "default_queue_policy { allow_timeout_override: true }"):
        assert rules(triton(text).settings) is None
    found = rules(triton(f"preferred_batch_size: [4, 2] {plain}").settings)
    assert found == BatchingRules(8, (2, 4), 100_000, default_policy=QueuePolicy(5))
    found = rules(triton(PBTXT).settings)
    assert found is not None
    assert found.policy_of(2) == QueuePolicy(8, 1_000_000, False, True)
    assert found.policy_of(1) == QueuePolicy(4, 500_000, True, False)
    assert found.policy_of(3) == QueuePolicy()
    assert [found.level_of(priority) for priority in (0, 1, 3, 4, -1, MOST)] == [2, 1, 3, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "effective", "apart"),
    [
        ("", set(), False),
        ("preferred_batch_size: 8", set(), False),
        ("preferred_batch_size: 4", set(), True),
        ("default_queue_policy { max_queue_size: 1 }", set(), True),
        ("priority_levels: 2 default_priority_level: 1", {"priority"}, True),
        ("default_queue_policy { default_timeout_microseconds: 9 }", set(), True),
        (PBTXT, {"priority", "timeout"}, True),
    ],
)
def test_a_model_config_tells_what_requests_can_say(text: str, effective: set[str], apart: bool) -> None:
    config = text_format.Parse(f"max_batch_size: 8 dynamic_batching {{ {text} }}", ModelConfig())
    assert acts_on(config) == effective
    assert keeps_requests_apart(config) is apart


def test_equal_policies_are_equal_settings() -> None:
    assert replace(POLICIES) == POLICIES
    assert ModelSettings(policies=POLICIES) != ModelSettings()
