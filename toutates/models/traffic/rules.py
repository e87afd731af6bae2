"""What names beside those of models stand for, and how the requests of a name are divided.

The rules are immutable and replaced as a whole, as a part of the table of models: a change is in force for all requests
of a worker at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

from toutates.system.spelling import composed

__all__ = ["BY_ID", "NO_TRAFFIC", "Route", "Shadow", "Target", "TrafficRules", "cuts_of", "spread"]

#: ``Route.sticky`` of routes that are sticky by the id of a request.
BY_ID: Final = "id"
#: Shares are cut out of the numbers below this one.
WHOLE: Final = 2**32
_MASK: Final = WHOLE - 1


@dataclass(frozen=True, slots=True)
class Target:
    """A model version that a name stands for.

    Attributes:
        model: its name.
        version: its number; None for the newest.
    """

    model: str
    version: int | None = None

    def __str__(self) -> str:
        return f"'{self.model}'" if self.version is None else f"'{self.model}' version {self.version}"


@dataclass(frozen=True, slots=True)
class Shadow:
    """A version that gets copies of requests, whose answers are compared and not sent.

    Attributes:
        target: the version.
        share: of the requests, from 0 to 1.
        rtol, atol: two numbers a and b are equal where ``|a - b| <= atol + rtol * |b|``; b is the one that was sent.
    """

    target: Target
    share: float
    rtol: float
    atol: float

    @property
    def cut(self) -> int:
        """How many of the numbers below 2**32 stand for a request that is copied."""
        return round(self.share * WHOLE)


@dataclass(frozen=True, slots=True)
class Route:
    """Where the requests of a name go that name no version.

    Attributes:
        name: that requests name.
        arms: the versions, in the order of the file; one where only a shadow is given.
        weights: of each, above 0.
        sticky: BY_ID, "parameter:NAME", or "" for at random.
        shadow: None for none.
    """

    name: str
    arms: tuple[Target, ...]
    weights: tuple[int, ...]
    sticky: str = ""
    shadow: Shadow | None = None

    @property
    def parameter(self) -> str:
        """The request's parameter by which it is sticky; "" for none."""
        return self.sticky.partition(":")[2]

    @property
    def heaviest(self) -> Target:
        """The first of the versions that get the most requests; what is asked of the name itself is answered by it."""
        return self.arms[self.weights.index(max(self.weights))]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The versions that answer, and the shadow."""
        return self.arms if self.shadow is None else (*self.arms, self.shadow.target)


@dataclass(frozen=True, slots=True)
class TrafficRules:
    """All rules of a server.

    Attributes:
        aliases: by name, what it stands for; it is no alias itself.
        routes: by name. Aliases of a name with a route have it as well.
        document: the rules as they were given, without what can be left out.
    """

    aliases: Mapping[str, Target] = field(default_factory=dict)
    routes: Mapping[str, Route] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)

    def leads_to(self, name: str) -> tuple[str, ...]:
        """Names of the models whose answers callers of a name get, where it is not only a model's own name."""
        if not name.isascii() and name not in self.routes and name not in self.aliases:
            name = composed(name)
        route = self.routes.get(name)
        if route is not None:
            return tuple(dict.fromkeys(arm.model for arm in route.arms))
        alias = self.aliases.get(name)
        return () if alias is None else (alias.model,)

    def __bool__(self) -> bool:
        return bool(self.aliases or self.routes)


NO_TRAFFIC: Final = TrafficRules(MappingProxyType({}), MappingProxyType({}), MappingProxyType({}))


def cuts_of(weights: tuple[int, ...]) -> list[int]:
    """Where the shares of all versions but the last one end, among the numbers below 2**32."""
    total, so_far = sum(weights), 0
    cuts: list[int] = []
    for weight in weights[:-1]:
        so_far += weight
        cuts.append(so_far * WHOLE // total)
    return cuts


def spread(identity: bytes, salt: int) -> int:
    """A number below 2**32 for an identity: the same one in every process, whatever the seed of Python's hashes.

    The CRC alone would put identities of one length into the same halves whatever the salt: names would be split alike.
    The multiplications are those of MurmurHash3's finalizer.
    """
    mixed = crc32(identity) ^ salt
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    return mixed ^ mixed >> 16
