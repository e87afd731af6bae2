"""The table of models: every version the repository holds, whether it can answer, and if not, why.

The table is immutable and replaced as a whole, so that readers in every thread take no lock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from toutates.engine.calls import Calls
from toutates.engine.servable import Servable
from toutates.engine.turns.arbiter import Member as TurnsMember
from toutates.models.config.labels import Labels
from toutates.models.entry_map import EntryMap
from toutates.models.near_names import NearNames
from toutates.models.traffic.rules import NO_TRAFFIC, Target, TrafficRules
from toutates.protocol.model_config_pb2 import ModelConfig, ModelVersionPolicy
from toutates.protocol.signature import Signature
from toutates.system.errors import InvalidRequest, ModelNotReady, NotLoaded, RequestError, UnknownModel
from toutates.system.spelling import composed

__all__ = [
    "MAX_CHANGES",
    "UNLOADED",
    "Changes",
    "Dependent",
    "Member",
    "ModelEntry",
    "ModelState",
    "ModelTable",
    "Need",
    "ServedVersion",
    "VersionEntry",
    "parse_version",
]

#: Triton's reason for versions that were unloaded, which do not count against readiness.
UNLOADED: Final = "unloaded"
_NOTHING_STATED: Final = ModelConfig()
#: Models that one sentence names.
_MAX_NAMES: Final = 5
#: Changes that a table remembers: more than there are between two looks of a worker at it.
MAX_CHANGES: Final = 64


class ModelState(Enum):
    """States as RepositoryIndex names them."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Need:
    """A version of another model that a version is made of.

    Attributes:
        model: its name.
        version: its number; None for the newest.
    """

    model: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """What has to be known of a version that others are made of.

    Attributes:
        signature: its tensors.
        batch_size: its ``max_batch_size``; 0 where it is not batched.
        decoupled: whether a request to it may have any number of responses.
    """

    signature: Signature
    batch_size: int
    decoupled: bool = False


class Dependent(Protocol):
    """What connects a version with the versions of other models that it is made of. For the manager's thread.

    Attributes:
        needs: which these are.
        decoupled: whether a request may have any number of responses, by the versions that are used; False while none
            were. It never changes from then on: it would not agree with others.
    """

    @property
    def needs(self) -> Sequence[Need]: ...

    @property
    def decoupled(self) -> bool: ...

    def decoupled_by(self, members: Mapping[Need, Member]) -> bool:
        """What ``decoupled`` would be with these versions; some may be missing."""
        ...

    def disagreements(self, members: Mapping[Need, Member]) -> list[str]:
        """What these versions and it do not agree on, a sentence each; some may be missing."""
        ...

    def bind(self, members: Mapping[Need, ServedVersion] | None) -> None:
        """Use these versions from now on; None for none, so that it cannot answer. Those from before are let go of
        when what they have under way is done."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ServedVersion:
    """A model version that has been loaded.

    Attributes:
        model: name of the model.
        number: of the version.
        description: what ModelConfig answers, or what makes it.
        servable: where its requests go.
        load_ns: how long loading it took.
        labels: of classes, by the index of the output.
        advice: what would make it use cores that have nothing to do; "" for nothing.
        dependent: what connects it with the versions of other models that it is made of; None for a model by itself.
        calls: by which other models use it.
        stated: of what ModelConfig answers, what others than this server have said, where nothing had to be made of it.
        takes_parameters: whether it reads what requests say beside their tensors, now; None for never.
        takes_turns: whether its requests take turns by their callers, now; None for never.
        turns: how its executors come to their turns among those of all models; None where they have none.
        has_code: whether something runs its code now. While nothing does, it is not ready, and requests wait or fail.
        memory_bytes: that it takes (``memory_size``).
        pinned: whether it stays in memory, where models leave it for others.
        sessions: that have its weights, each by itself.
        given: what the model's config.pbtxt says, where ``description`` makes the answer of it; None for no such file.
        loaded_s: when it was loaded, seconds since 1970.
    """

    model: str
    number: int
    description: ModelConfig | Callable[[], ModelConfig]
    servable: Servable
    load_ns: int = 0
    labels: Mapping[int, Labels] = field(default_factory=dict)
    advice: str = ""
    takes_parameters: Callable[[], bool] | None = None
    takes_turns: Callable[[], bool] | None = None
    has_code: Callable[[], bool] = lambda: True
    dependent: Dependent | None = None
    turns: TurnsMember | None = None
    memory_bytes: int = 0
    pinned: bool = False
    sessions: int = 1
    given: ModelConfig | None = None
    loaded_s: float = field(default_factory=time.time)
    calls: Calls = field(init=False)
    stated: ModelConfig = field(init=False)
    _decoupled: bool = field(init=False)
    _config: ModelConfig | None = field(init=False)

    def __post_init__(self) -> None:
        config = self.description if isinstance(self.description, ModelConfig) else None
        stated = config or self.given or _NOTHING_STATED
        set_once = partial(object.__setattr__, self)
        set_once("_config", config)
        set_once("stated", stated)
        set_once("_decoupled", stated.model_transaction_policy.decoupled)
        set_once("calls", Calls(self.model, self.number, self.servable))

    @property
    def config(self) -> ModelConfig:
        """What ModelConfig answers. It is made when somebody asks for it."""
        config = self._config
        if config is None:
            assert not isinstance(self.description, ModelConfig)
            config = self.description()
            object.__setattr__(self, "_config", config)  # of two threads that make it one does so in vain
        return config

    def note_policy(self, policy: ModelVersionPolicy) -> None:
        """Have ModelConfig say which versions are served now; called by the manager where another one has come."""
        if self.config.version_policy != policy:
            config = ModelConfig()
            config.CopyFrom(self.config)
            config.version_policy.CopyFrom(policy)
            object.__setattr__(self, "_config", config)  # as a whole, because others read the old one

    def note_load(self, turns: TurnsMember | None, memory_bytes: int, load_ns: int, *, pinned: bool) -> None:
        """Say what is known at the end of its load; called by its loader, once, while nobody else has it."""
        set_once = partial(object.__setattr__, self)
        set_once("turns", turns)
        set_once("memory_bytes", memory_bytes)
        set_once("load_ns", load_ns)
        set_once("pinned", pinned)

    @property
    def signature(self) -> Signature:
        """Its tensors."""
        return self.servable.signature

    @property
    def decoupled(self) -> bool:
        """Whether a request to it may have any number of responses."""
        return self._decoupled if self.dependent is None else self.dependent.decoupled

    @property
    def reads_parameters(self) -> bool:
        """Whether the parameters of requests have an effect."""
        return self.takes_parameters is not None and self.takes_parameters()

    @property
    def has_target(self) -> bool:
        """Whether it has a latency target."""
        return self.turns is not None and self.turns.has_target

    @property
    def member(self) -> Member:
        """What a version that is made of this one has to know of it."""
        return Member(self.signature, self.config.max_batch_size, self.decoupled)


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version of the repository.

    Attributes:
        number: of the version.
        state: as RepositoryIndex shows it.
        reason: why it is not ready; or, for one that is, why it could not be replaced by what the repository has now.
        served: given from when it has loaded until it is unloaded; it may lose its executors meanwhile.
        identity: equal for versions of the same files and configuration; None where that is not known.
    """

    number: int
    state: ModelState
    reason: str = ""
    served: ServedVersion | None = None
    identity: object = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of the repository.

    Attributes:
        name: of the model.
        versions: by number, ascending.
        problem: why it has none.
        gone: numbers of versions that were served and have been removed, or are no longer chosen; ascending.
        retried: whether it is being loaded again after a version of it could not be served.
    """

    name: str
    versions: Mapping[int, VersionEntry] = field(default_factory=dict)
    problem: str = ""
    gone: tuple[int, ...] = ()
    retried: bool = False

    @property
    def fails(self) -> bool:
        """Whether a version that should be served cannot be. While it is loaded again, it still counts as failed."""
        return bool(self.problem) or self.retried or any(map(_has_failed, self.versions.values()))

    @property
    def is_lacking(self) -> bool:
        """Whether it keeps the server from being ready: it fails, and no version of it is served.

        A version that was never served takes nothing from clients while another one is. One that was served counts.
        """
        if not self.fails:
            return False
        lost = any(entry.served is not None and _has_failed(entry) for entry in self.versions.values())
        return lost or not self.served()

    @property
    def may_be_loaded(self) -> bool:
        """Of a model that is loaded on demand: whether nothing of it is served, but for what somebody has unloaded."""
        return not any(entry.served is not None or entry.reason == UNLOADED for entry in self.versions.values())

    def served(self) -> list[ServedVersion]:
        """The versions that were loaded, by number, even if their executors have died."""
        return [entry.served for entry in self.versions.values() if entry.served is not None]


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed in tables that followed each other, as far as those who remember something of models must know.

    A model of which nothing was served before is not among it: nobody can remember anything of it.

    Attributes:
        number: how many changes there were; the same number means the same changes.
        latest: the models that each of the last changes was about, the last change at the end; None for all models.
        of: the same object for tables that follow each other.
    """

    number: int = 0
    latest: tuple[frozenset[str] | None, ...] = ()
    of: object = field(default_factory=object)

    def and_then(self, names: frozenset[str] | None) -> Changes:
        """One more change."""
        return Changes(self.number + 1, (*self.latest, names)[-MAX_CHANGES:], self.of)

    def since(self, before: Changes) -> frozenset[str] | None:
        """The models that later changes than those of an earlier table were about; None for all models."""
        count = self.number - before.number
        if before.of is not self.of or count > len(self.latest):
            return None
        names: set[str] = set()
        for changed in self.latest[len(self.latest) - count :]:
            if changed is None:
                return None
            names |= changed
        return frozenset(names)


_LEADING_INTEGER = re.compile(r"\s*([+-]?[0-9]+)")


def parse_version(text: str) -> int | None:
    """The version a request asks for; None for the newest.

    Raises:
        InvalidRequest: not a number, or negative. What follows the digits is ignored, as by Triton.
    """
    if not text:
        return None
    match = _LEADING_INTEGER.match(text)
    if match is None or abs(number := int(match[1][:32])) >= 2**63:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text[:64]}' (details: stol), "
            "version should be an integral value > 0"
        )
    if number < 0:
        raise InvalidRequest(f"invalid model version specified '{text[:64]}' , version should be an integral value > 0")
    return number


def _has_failed(entry: VersionEntry) -> bool:
    return entry.state is ModelState.UNAVAILABLE and entry.reason != UNLOADED


class ModelTable:
    """Every model of the repository, by name, sorted.

    Args:
        models: by name.
        removed: by name, models that were served and are in no repository any more: numbers of their versions.
        complete: whether the initial load has ended, successfully or not.
        may_be_empty: whether a server without models is ready, because models are loaded on request.
        suggests_names: whether callers that name a model that is not there are told of one whose name is like it.
        loadable: names of models that are loaded when a request needs them; none for none.
        spellings: by their NFC form, names of models with letters beyond ASCII.
        names: finds the model that a caller may have meant; made of ``models`` if it is not given.
        failed: names of models of which something cannot be served; found out if it is not given.
        failures_count: whether these keep the server from being ready.
        changes: what has changed since the first table of this server; None for a table with none before it.
        traffic: what names stand for, and how their requests are divided.
        traffic_problem: what is wrong with these rules, or with others that were to replace them; "" for nothing.

    Attributes:
        models: all of them by name, sorted. Sorting them is left to the first who asks, see ``get``.
        names: finds the model that a caller may have meant.
        unready_reason: why the server is not ready, a sentence without a full stop; "" if it is.
    """

    def __init__(
        self,
        models: Mapping[str, ModelEntry] | EntryMap[ModelEntry],
        *,
        removed: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        complete: bool = True,
        may_be_empty: bool = True,
        suggests_names: bool = False,
        loadable: Container[str] = (),
        spellings: Mapping[str, str] = MappingProxyType({}),
        names: NearNames | None = None,
        failed: Collection[str] | None = None,
        failures_count: bool = True,
        changes: Changes | None = None,
        traffic: TrafficRules = NO_TRAFFIC,
        traffic_problem: str = "",
    ) -> None:
        self._by_name = models if isinstance(models, EntryMap) else EntryMap.of(models)
        self._sorted: Mapping[str, ModelEntry] | None = None
        self._failed = failed
        self._failures_count = failures_count
        self.loadable = loadable
        self._spellings = spellings
        self.changes = changes or Changes()
        self.traffic = traffic
        self.traffic_problem = traffic_problem
        self.removed = removed
        self.complete = complete
        self.may_be_empty = may_be_empty
        self.suggests_names = suggests_names
        self.unready_reason = self._find_unready_reason()
        self.names = names if names is not None else NearNames(self.models if suggests_names else ())

    @property
    def models(self) -> Mapping[str, ModelEntry]:
        """All models by name, sorted."""
        found = self._sorted
        if found is None:  # of two threads that sort at the same time one is in vain
            found = self._sorted = MappingProxyType(dict(sorted(self._by_name.items())))
        return found

    def get(self, name: str) -> ModelEntry | None:
        """A model; None for one that is not in the table."""
        return self._by_name.get(name)

    def __len__(self) -> int:
        """How many models there are."""
        return len(self._by_name)

    def __bool__(self) -> bool:
        return True

    def knows(self, name: str) -> bool:
        """Whether there is a model of this name, loaded or not."""
        return name in self._by_name or name in self.loadable

    def has_name(self, name: str) -> bool:
        """Whether a name means anything: a model, or what an alias or traffic lead to."""
        return self.knows(name) or name in self.traffic.aliases or name in self.traffic.routes

    def spelling(self, name: str) -> str:
        """A name as the repository or the rules of traffic spell it, where a caller composes its letters otherwise.

        The same name where nothing is found so either.
        """
        if name.isascii() or self.has_name(name):
            return name
        found = self.model_spelling(name)
        if found is not name:
            return found
        normal = composed(name)
        return normal if self.has_name(normal) else name

    def model_spelling(self, name: str) -> str:
        """The name of a model as the repository spells it; the same name where no model has it so either."""
        if name.isascii() or self.knows(name):
            return name
        return self._spellings.get(composed(name), name)

    @property
    def ready(self) -> bool:
        """Whether no known version fails to answer that should: Triton's strict readiness, but for two things.

        What is being loaded or unloaded does not count, because a server that serves the rest must not be taken out of
        its load balancer for it. But what could not be served counts until it can: being tried again does not make the
        server ready for a moment. A server without any model is not ready, unless it was told to start empty.
        """
        return not self.unready_reason

    @property
    def failed(self) -> list[str]:
        """Names of the models that keep the server from being ready, sorted."""
        if self._failed is not None:
            return sorted(self._failed)
        return [name for name, model in self.models.items() if model.is_lacking]

    def _find_unready_reason(self) -> str:
        if not self.complete:
            return "models are being loaded"
        failed = self.failed if self._failures_count else ()
        if failed:
            shown = ", ".join(f"'{name}'" for name in failed[:_MAX_NAMES])
            more = f" and {len(failed) - _MAX_NAMES} more" if len(failed) > _MAX_NAMES else ""
            return f"{len(failed)} of {len(self)} models cannot be served: {shown}{more}"
        if not self.may_be_empty and not self.served():
            return "no model is served: the model repository has none"
        if self.traffic_problem and not self.traffic:
            return "the rules of aliases and traffic cannot be used"
        return ""

    def target_of(self, name: str, version: str) -> Target | None:
        """The version that a name stands for, where it is an alias or has traffic; None for a model by its own name.

        Where requests are split, the one that gets the most of them.

        Raises:
            InvalidRequest: the version is no number, or is asked of a name that stands for one version, or for several.
        """
        traffic = self.traffic
        route, alias = traffic.routes.get(name), traffic.aliases.get(name)
        number = parse_version(version)
        if number is None:
            return alias if route is None else route.heaviest
        if alias is not None:
            if alias.version is None:
                return Target(alias.model, number)
            if alias.version == number:
                return alias
            raise InvalidRequest(f"'{name}' stands for {alias}; name no version, or this one")
        if route is not None and not self.knows(name):
            raise InvalidRequest(f"the requests for '{name}' are divided between versions; name none")
        return None

    def find(self, name: str, version: str) -> ServedVersion:
        """The version a request asks for; of a name with traffic, that which gets the most requests.

        Raises:
            RequestError: in Triton's words: unknown, not ready, or the version is no number.
        """
        if self.traffic:
            target = self.target_of(name, version)
            if target is not None:
                return self.find_target(name, target)
        return self._find(name, version)

    def find_target(self, name: str, target: Target) -> ServedVersion:
        """The version that a name stands for.

        Args:
            name: that was asked for, for errors.
            target: the version.

        Raises:
            RequestError: it is unknown or not ready.
        """
        try:
            return self._find(target.model, "" if target.version is None else str(target.version))
        except RequestError as error:
            if target.model == name or isinstance(error, NotLoaded):
                raise
            raise type(error)(f"'{name}' stands for model {target}: {error}") from None

    def _find(self, name: str, version: str) -> ServedVersion:
        """The version of a model by its own name."""
        number = parse_version(version)
        model = self._by_name.get(name)
        if name in self.loadable and (model is None or model.may_be_loaded):
            raise NotLoaded(name)
        if model is None and not name.isascii() and (spelled := self.spelling(name)) != name:
            return self.find(spelled, version)
        if model is None and name in self.removed:
            model = ModelEntry(name, gone=self.removed[name])
        if model is None:
            # Triton's text, and what may have been meant after it.
            near = self.names.like(name)
            meant = f"; did you mean '{near}'?" if near else ""
            raise UnknownModel(f"Request for unknown model: '{name}' is not found{meant}")
        if number is None:
            loaded = model.served()
            if not loaded:
                raise UnknownModel(f"Request for unknown model: '{name}' has no available versions")
            # The newest, even if it cannot answer just now: an older one would give other answers for a moment.
            number = loaded[-1].number
        entry = model.versions.get(number)
        if entry is None and number not in model.gone:
            raise UnknownModel(f"Request for unknown model: '{name}' version {number} is not found")
        if entry is None or entry.served is None or entry.state is not ModelState.READY:
            raise ModelNotReady(f"Request for unknown model: '{name}' version {number} is not at ready state")
        return entry.served

    def served(self) -> list[ServedVersion]:
        """All versions that were loaded, by name and number."""
        return [version for model in self.models.values() for version in model.served()]
