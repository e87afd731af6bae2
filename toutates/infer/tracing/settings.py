"""Triton's trace settings, for all models and for single ones, which change while the server runs.

A setting of a model is the value given for the model, or else the value given for all models, or else the flag's.
``TraceSettings.rules`` is what follows for sampling. It is immutable, and replaced as a whole.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toutates.system.errors import InvalidRequest, Unsupported
from toutates.system.text import shown

__all__ = [
    "LEVELS",
    "OFF",
    "Budget",
    "Changes",
    "Rule",
    "Rules",
    "TraceSetting",
    "TraceSettings",
    "read_changes",
    "without_effect",
]

OFF: Final = "OFF"
#: Trace levels, in the order in which Triton lists them.
LEVELS: Final = ("TIMESTAMPS", "TENSORS")
#: Levels that earlier versions of Triton had; it ignores them today.
_OLD_LEVELS: Final = ("MIN", "MAX")
_UNLIMITED: Final = -1
#: Settings that one line of the log names.
_MAX_SAID: Final = 5


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """The trace settings of a model, or of all models without settings of their own.

    Attributes:
        levels: some of LEVELS; none for OFF.
        rate: one of this many requests is traced; 0 for only those whose callers ask for it.
        count: how many requests are traced by the rate; -1 for no end.
        log_frequency: a setting of Triton's trace files; it is kept, and has no effect.
    """

    levels: tuple[str, ...] = ()
    rate: int = 1_000
    count: int = _UNLIMITED
    log_frequency: int = 0


#: New values by the name of the field of ``TraceSetting``; None for a value that is taken back.
Changes = Mapping[str, Any]


def read_changes(settings: Mapping[str, Sequence[str]]) -> Changes:
    """Read the changes that a TraceSetting request asks for. Unknown keys are ignored.

    Args:
        settings: values by the keys of the protocol.

    Raises:
        InvalidRequest, Unsupported: a value cannot be used. The text is Triton's. Keys are read in Triton's order, so
            that of several mistakes the same one is named.
    """
    if "trace_file" in settings:
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    for key, (name, read) in _KEYS.items():
        values = settings.get(key)
        if values is None:
            continue
        if not values:
            changes[name] = None
        elif name == "levels":
            changes |= _read_levels(values)
        elif len(values) == 1:
            changes[name] = read(key, values[0])
        else:
            raise InvalidRequest(f"expect only 1 value for '{key}'")
    return changes


def without_effect(settings: Mapping[str, Sequence[str]]) -> list[str]:
    """Find the settings of a TraceSetting request that have no effect: a clause for each, for the log.

    Args:
        settings: the settings of a request that ``read_changes`` has accepted.
    """
    found = [f"the setting '{shown(key)}', which is not known" for key in settings if key not in _KNOWN_KEYS]
    old = [level for level in _OLD_LEVELS if level in settings.get("trace_level", ())]
    found += [f"the trace level {level}, which Triton no longer has" for level in old]
    if any(mode != "opentelemetry" for mode in settings.get("trace_mode", ())):
        found.append("trace_mode: it is always opentelemetry")
    if any(value.strip() != "0" for value in settings.get("log_frequency", ())):
        found.append("log_frequency: it is of Triton's trace files, which are not written")
    return found[:_MAX_SAID]


def _read_levels(values: Sequence[str]) -> Changes:
    if OFF in values and len(values) > 1:
        raise InvalidRequest(f"Expect only one trace level '{OFF}' is specified")
    for level in values:
        if level not in (OFF, *LEVELS, *_OLD_LEVELS):
            known = ", ".join((OFF, *LEVELS))
            raise InvalidRequest(f"there is no trace level '{shown(level)}', choose from {known}")
    levels = tuple(level for level in LEVELS if level in values)
    return {"levels": levels} if levels or OFF in values else {}


_LEADING_INTEGER: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def _integer(key: str, text: str, least: int, most: int) -> int:
    """The number at the start of a text, read as C++ does for Triton: text after the digits is ignored."""
    match = _LEADING_INTEGER.match(text)
    if match is None:
        raise InvalidRequest(f"Unable to parse '{key}', got: {shown(text)}")
    # No more digits than int() takes.
    number = int(match[1][:32])
    if not least <= number <= most:
        raise InvalidRequest(f"Unable to parse '{key}', value is out of range [ {least}, {most} ], got: {shown(text)}")
    return number


def _unsigned(key: str, text: str) -> int:
    return _integer(key, text, 0, 2**32 - 1)


def _count(key: str, text: str) -> int:
    match = _LEADING_INTEGER.match(text)
    if match is not None and -(2**31) <= int(match[1][:32]) < _UNLIMITED:
        raise InvalidRequest(f"Unable to parse '{key}'. Expecting value >= {_UNLIMITED}, got: {shown(text)}")
    return _integer(key, text, _UNLIMITED, 2**31 - 1)


#: Keys of the protocol, in Triton's order, with the field of ``TraceSetting`` and the function that reads a value.
_KEYS: Final[Mapping[str, tuple[str, Callable[[str, str], int]]]] = {
    "trace_level": ("levels", _unsigned),
    "trace_rate": ("rate", _unsigned),
    "trace_count": ("count", _count),
    "log_frequency": ("log_frequency", _unsigned),
}


_KNOWN_KEYS: Final = frozenset({*_KEYS, "trace_file", "trace_mode"})


class Budget:
    """Counts how many requests may still be traced. Shared by all threads.

    Attributes:
        left: requests that may be traced; -1 for no end. Read without the lock where a stale number does no harm.
    """

    __slots__ = ("_lock", "left")

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self.left = count

    def take(self) -> bool:
        """Take one request off the budget; returns whether one was left."""
        with self._lock:
            if self.left > 0:
                self.left -= 1
                return True
            return self.left == _UNLIMITED


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The part of a model's trace settings that sampling needs.

    Attributes:
        on: whether anything is traced.
        rate: one of this many requests is traced; 0 for only those whose callers ask for it.
        budget: counts the requests that are traced by the rate.
    """

    on: bool
    rate: int
    budget: Budget


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The rules of sampling for all models. Immutable.

    Attributes:
        default: the rule of models without a rule of their own.
        models: the rules of the other models, by name.
        on: whether any model is traced.
        every: one of this many requests, of all models together, has to be observed; 0 for none.
    """

    default: Rule
    models: Mapping[str, Rule] = field(default_factory=dict)

    @property
    def _all(self) -> list[Rule]:
        return [self.default, *self.models.values()]

    @property
    def on(self) -> bool:
        return any(rule.on for rule in self._all)

    @property
    def every(self) -> int:
        return min((rule.rate for rule in self._all if rule.on and rule.rate and rule.budget.left), default=0)

    def of(self, model: str) -> Rule:
        """The rule of a model."""
        return self.models.get(model, self.default)


class TraceSettings:
    """The trace settings of the server. Shared by all threads.

    Args:
        defaults: the settings that the flags give.
        unavailable: why nothing can be traced, told to a caller who turns traces on; "" if it can.

    Attributes:
        rules: what the settings mean for sampling.
    """

    def __init__(self, defaults: TraceSetting, unavailable: str = "") -> None:
        self._defaults = defaults
        self._unavailable = unavailable
        #: guards the attributes below; ``rules`` is read without it
        self._lock = threading.Lock()
        #: values given by TraceSetting, by model and field; "" stands for all models, and a count is a ``Budget``
        self._given: dict[str, dict[str, Any]] = {}
        self._default_budget = Budget(defaults.count)
        self._listeners: list[Callable[[Rules], None]] = []
        self.rules = self._make_rules(self._given)

    def listen(self, listener: Callable[[Rules], None]) -> None:
        """Call ``listener`` with the rules, now and whenever they change, on the thread that changes them."""
        with self._lock:
            self._listeners.append(listener)
            listener(self.rules)

    def get(self, model: str = "") -> TraceSetting:
        """The settings of a model; with "", those of all other models. ``count`` is what is left of the budget."""
        with self._lock:
            return self._effective(self._given, model)[0]

    def update(self, model: str, changes: Changes) -> None:
        """Change the settings of a model, or with "" those of all models. All changes are made, or none.

        Raises:
            InvalidRequest: it would turn traces on where nothing can be traced.
        """
        with self._lock:
            given = {name: dict(values) for name, values in self._given.items()}
            own = given.setdefault(model, {})
            for name, value in changes.items():
                own.pop(name, None)
                if value is not None:
                    own[name] = Budget(value) if name == "count" else value
            if not own:
                del given[model]
            if self._unavailable and changes.get("levels"):
                raise InvalidRequest(f"Attempting to set invalid trace setting :{self._unavailable}")
            self._given = given
            self._replace_rules()

    def refresh(self) -> None:
        """Make the rules anew, because a budget is used up and fewer requests have to be observed."""
        with self._lock:
            self._replace_rules()

    def _replace_rules(self) -> None:
        self.rules = rules = self._make_rules(self._given)
        for listener in self._listeners:
            listener(rules)

    def _effective(self, given: Mapping[str, Mapping[str, Any]], model: str) -> tuple[TraceSetting, Budget]:
        values = {**given.get("", {}), **given.get(model, {})}
        budget: Budget = values.pop("count", self._default_budget)
        return replace(self._defaults, **values, count=budget.left), budget

    def _make_rules(self, given: Mapping[str, Mapping[str, Any]]) -> Rules:
        def rule(model: str) -> Rule:
            setting, budget = self._effective(given, model)
            return Rule(bool(setting.levels), setting.rate, budget)

        return Rules(rule(""), {model: rule(model) for model in given if model})
