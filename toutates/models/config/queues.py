"""The queue of a model: priorities, how long requests wait, and how many. Keys of config.yaml and Triton's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

from toutates.engine.policies.rules import BatchingRules, QueuePolicy
from toutates.models.config.problems import Problems
from toutates.models.config.yaml_section import Section
from toutates.protocol.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

__all__ = [
    "KEYS",
    "MAX_QUEUE_SIZE",
    "NO_POLICIES",
    "PolicySettings",
    "QueueSettings",
    "acts_on",
    "batching_rules",
    "fill_policies",
    "keeps_requests_apart",
    "policies_as_yaml",
    "read_policies",
    "triton_policies",
    "waiting_requests",
]

MAX_QUEUE_SIZE: Final = 2**32 - 1  # Triton's field has 32 bits
_MAX_LEVELS: Final = 2**64 - 1
_MAX_TIMEOUT_US: Final = 2**64 - 1
#: Priorities that have a queue policy of their own.
_MAX_POLICIES: Final = 1_024

Action = Literal["reject", "delay"]
_ACTIONS: Final = ("reject", "delay")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What becomes of requests of one priority that wait.

    Attributes:
        max_queue_size: that may wait; 0 for any number.
        timeout_us: what is done with a request that has waited for so long is ``action``; 0 for never.
        action: ``reject`` or ``delay``.
        allow_override: whether the parameter ``timeout`` of a request may be shorter.
    """

    max_queue_size: int = 0
    timeout_us: int = 0
    action: Action = "reject"
    allow_override: bool = False

    def policy(self) -> QueuePolicy:
        """The same for the engine."""
        return QueuePolicy(self.max_queue_size, self.timeout_us, self.action == "delay", self.allow_override)


def _no_queues() -> Mapping[int, QueueSettings]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Priorities of a model, and the policies of its queues.

    Attributes:
        levels: how many priorities there are, 1 being the first to run; 0 for one alone.
        default_level: of requests that say none.
        default: of priorities that are not among ``queues``. ``max_queue_size`` of the model's settings is its size.
        queues: by priority.
    """

    levels: int = 0
    default_level: int = 0
    default: QueueSettings = QueueSettings()
    queues: Mapping[int, QueueSettings] = field(default_factory=_no_queues)

    @property
    def are_set(self) -> bool:
        """Whether requests wait by anything but their order and their number."""
        return self.levels > 0 or self.default.timeout_us > 0


#: Of a model that says nothing of them.
NO_POLICIES: Final = PolicySettings()


class _Problem(NamedTuple):
    field: str
    text: str
    value: object
    remedy: str


def _problems(policies: PolicySettings, preserve_ordering: bool, of_model: str) -> Iterator[_Problem]:
    """What is wrong with policies, in Triton's words, by the name of Triton's field.

    Args:
        policies: to be checked.
        preserve_ordering: whether answers keep the order of the requests.
        of_model: `` for NAME``, or nothing where the name is not known.
    """
    levels = policies.levels
    if levels and not 1 <= policies.default_level <= levels:
        text = f"default priority level must be in range [1, {levels}]{of_model}"
        yield _Problem("default_priority_level", text, policies.default_level, f"write a number from 1 to {levels}")
    for level in policies.queues:
        if not 1 <= level <= levels:
            text = f"priority queue policy must have priority level in range [1, {levels}]{of_model}"
            yield _Problem("priority_queue_policy", text, level, "remove it, or write more priority levels")
            break
    if preserve_ordering and levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true{of_model}"
        yield _Problem("priority_levels", text, levels, "remove one of the two")
    delays = [own for own in (policies.default, *policies.queues.values()) if own.action == "delay" and own.timeout_us]
    if preserve_ordering and delays:
        text = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true{of_model}"
        yield _Problem("timeout_action", text, "delay", "reject such requests, or remove one of the two")


# --- config.yaml -----------------------------------------------------------------------------------------------------

#: The keys that ``read_policies`` reads, and what it means that they are not there.
KEYS: Final = MappingProxyType(
    {
        "priority_levels": "requests have no priorities",
        "default_priority": "required with priority_levels",
        "queue_timeout_us": "requests wait for any time",
        "queue_timeout_action": "reject",
        "allow_timeout_override": "requests say no timeouts",
        "priority_queues": "all priorities have the same policy",
    }
)
_KEYS_OF_FIELDS: Final = {
    "default_priority_level": "default_priority",
    "priority_queue_policy": "priority_queues",
    "priority_levels": "priority_levels",
    "timeout_action": "queue_timeout_action",
}


def read_policies(section: Section, *, preserve_ordering: bool) -> PolicySettings:
    """The keys of a queue in a config.yaml, but for ``max_queue_size``, which any model may have."""
    queues: dict[int, QueueSettings] = {}
    own_queues = section.mapping("priority_queues", "priority_queues: {1: {max_queue_size: 8}}")
    if own_queues is not None:
        for key, own in own_queues.subsections("1: {max_queue_size: 8}"):
            size = own.optional_integer("max_queue_size", MAX_QUEUE_SIZE, 8, lowest=0) or 0
            queues[int(key) if key.isdecimal() and len(key) <= 20 else 0] = _read_queue(own, size)
            own.refuse_unknown_keys()
        if len(queues) > _MAX_POLICIES:
            section.refuse("priority_queues", f"has more than {_MAX_POLICIES} entries", len(queues), "write fewer")
    policies = PolicySettings(
        levels=section.optional_integer("priority_levels", _MAX_LEVELS, 2, lowest=0) or 0,
        default_level=section.optional_integer("default_priority", _MAX_LEVELS, 2, lowest=0) or 0,
        default=_read_queue(section),
        queues=MappingProxyType(queues),
    )
    for problem in _problems(policies, preserve_ordering, ""):
        section.refuse(_KEYS_OF_FIELDS[problem.field], problem.text, problem.value, problem.remedy)
    return policies


def _read_queue(section: Section, max_queue_size: int = 0) -> QueueSettings:
    return QueueSettings(
        max_queue_size,
        section.optional_integer("queue_timeout_us", _MAX_TIMEOUT_US, 1_000_000, lowest=0) or 0,
        cast(Action, section.optional_choice("queue_timeout_action", _ACTIONS) or "reject"),
        bool(section.optional_flag("allow_timeout_override")),
    )


def policies_as_yaml(policies: PolicySettings) -> dict[str, Any]:
    """The same keys with their values, but for those that say nothing."""
    values: dict[str, Any] = {}
    if policies.levels:
        values |= {"priority_levels": policies.levels, "default_priority": policies.default_level}
    values |= _queue_as_yaml(policies.default)
    if policies.queues:
        values["priority_queues"] = {
            str(level): {"max_queue_size": own.max_queue_size, **_queue_as_yaml(own)}
            for level, own in policies.queues.items()
        }
    return values


def _queue_as_yaml(own: QueueSettings) -> dict[str, Any]:
    if not own.timeout_us:
        return {}
    return {
        "queue_timeout_us": own.timeout_us,
        "queue_timeout_action": own.action,
        "allow_timeout_override": own.allow_override,
    }


# --- config.pbtxt ----------------------------------------------------------------------------------------------------


def triton_policies(config: ModelConfig, model: str, problems: Problems) -> PolicySettings:
    """What ``dynamic_batching`` says of the queue."""
    batching = config.dynamic_batching
    # As with Triton, policies of priorities mean nothing where there are none.
    given = batching.priority_queue_policy if batching.priority_levels else {}
    if len(given) > _MAX_POLICIES:
        problems.add(
            "dynamic_batching.priority_queue_policy",
            f"has more than {_MAX_POLICIES} entries",
            len(given),
            "write fewer",
        )
    policies = PolicySettings(
        batching.priority_levels,
        batching.default_priority_level if batching.priority_levels else 0,
        replace(_triton_queue(batching.default_queue_policy), max_queue_size=0),
        MappingProxyType({level: _triton_queue(given[level]) for level in sorted(given)}),
    )
    for problem in _problems(policies, batching.preserve_ordering, f" for {model}"):
        where = "default_queue_policy." if problem.field == "timeout_action" else ""
        problems.add(f"dynamic_batching.{where}{problem.field}", problem.text, problem.value, problem.remedy)
    return policies


def _triton_queue(policy: ModelQueuePolicy) -> QueueSettings:
    return QueueSettings(
        policy.max_queue_size,
        policy.default_timeout_microseconds,
        "delay" if policy.timeout_action == ModelQueuePolicy.DELAY else "reject",
        policy.allow_timeout_override,
    )


def fill_policies(batching: ModelDynamicBatching, policies: PolicySettings, max_queue_size: int) -> None:
    """Write policies into Triton's message."""
    batching.priority_levels = policies.levels
    batching.default_priority_level = policies.default_level
    if max_queue_size or policies.default != QueueSettings():
        _fill_queue(batching.default_queue_policy, policies.default, max_queue_size)
    for level, own in policies.queues.items():
        _fill_queue(batching.priority_queue_policy[level], own, own.max_queue_size)


def _fill_queue(policy: ModelQueuePolicy, own: QueueSettings, max_queue_size: int) -> None:
    policy.max_queue_size = max_queue_size
    policy.default_timeout_microseconds = own.timeout_us
    policy.timeout_action = ModelQueuePolicy.DELAY if own.action == "delay" else ModelQueuePolicy.REJECT
    policy.allow_timeout_override = own.allow_override


def acts_on(config: ModelConfig, *, has_target: bool = False) -> frozenset[str]:
    """Which of the parameters ``priority`` and ``timeout`` of requests have an effect.

    Args:
        config: of the model.
        has_target: whether it has a latency target.
    """
    if has_target:
        return frozenset({"timeout"})
    if config.HasField("sequence_batching"):
        return frozenset({"timeout"})
    if config.HasField("ensemble_scheduling"):
        return frozenset({"priority", "timeout"})  # which members are told
    batching = config.dynamic_batching
    queues = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    found = {"priority"} if batching.priority_levels else set()
    if any(queue.allow_timeout_override and queue.default_timeout_microseconds for queue in queues):
        found.add("timeout")
    return frozenset(found)


def keeps_requests_apart(config: ModelConfig) -> bool:
    """Whether requests for a model mean something other than their rows together: the queue counts and times them."""
    batching = config.dynamic_batching
    default = batching.default_queue_policy
    return bool(
        default.max_queue_size
        or default.default_timeout_microseconds
        or batching.priority_levels
        or set(batching.preferred_batch_size) - {config.max_batch_size}
    )


# --- the engine ------------------------------------------------------------------------------------------------------


def waiting_requests(policies: PolicySettings, max_queue_size: int) -> int:
    """How many requests may wait at once; 0 where that is not bounded."""
    sizes = [own.max_queue_size for own in policies.queues.values()]
    others = policies.levels - len(sizes) if policies.levels else 1
    if not all(sizes) or (others and not max_queue_size):
        return 0
    return sum(sizes) + others * max_queue_size


def batching_rules(
    policies: PolicySettings, max_queue_size: int, preferred: tuple[int, ...], most_rows: int, delay_us: int
) -> BatchingRules | None:
    """The rules of a model that has any; None of one whose requests only share batches.

    Args:
        policies: of the model.
        max_queue_size: of its default queue.
        preferred: sizes of its batches; () for ``most_rows`` alone.
        most_rows: of a batch.
        delay_us: how long a smaller one may wait.
    """
    sizes = tuple(sorted(set(preferred) - {most_rows}))
    if not sizes and not policies.are_set:
        return None
    default = policies.default
    return BatchingRules(
        most_rows,
        tuple(sorted(set(preferred))),
        delay_us * 1_000,
        policies.levels,
        policies.default_level,
        QueuePolicy(max_queue_size, default.timeout_us, default.action == "delay", default.allow_override),
        MappingProxyType({level: own.policy() for level, own in policies.queues.items()}),
    )
