"""Restricted protocols: groups of RPCs that only callers with a secret may use, in the words of Triton's flags.

    --grpc-restricted-protocol=PROTOCOLS:KEY=VALUE
    --http-restricted-api=PROTOCOLS:KEY=VALUE

The first restricts every RPC of the groups PROTOCOLS to calls whose metadata have ``triton-grpc-protocol-KEY: VALUE``,
the second every endpoint of them to requests with the header field ``KEY: VALUE``. This module reads the flags;
``toutates.api.grpc.guards`` and ``toutates.api.rest.handler`` enforce them. The value is a secret: no text made here
shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = [
    "CHANGES",
    "FLAG",
    "HTTP_FLAG",
    "PROTOCOLS",
    "REST_GROUPS",
    "RestrictedProtocol",
    "by_group",
    "parse_restrictions",
    "without_secret",
]

FLAG: Final = "--grpc-restricted-protocol"
HTTP_FLAG: Final = "--http-restricted-api"
_NOUNS: Final = {FLAG: "restricted protocol", HTTP_FLAG: "restricted api"}
_CARRIERS: Final = {FLAG: "metadata", HTTP_FLAG: "header field"}

_SERVICE: Final = "/inference.GRPCInferenceService/"
_HEALTH: Final = "/grpc.health.v1.Health/"


def _rpcs(*names: str) -> tuple[str, ...]:
    return tuple(_SERVICE + name for name in names)


#: Triton's groups, and the paths of their RPCs. Triton has neither Watch, which is in the group of Check, nor server
#: reflection, which has a group of its own.
PROTOCOLS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "health": (*_rpcs("ServerLive", "ServerReady", "ModelReady"), _HEALTH + "Check", _HEALTH + "Watch"),
        "metadata": _rpcs("ServerMetadata", "ModelMetadata"),
        "inference": _rpcs("ModelInfer", "ModelStreamInfer"),
        "shared-memory": _rpcs(
            *(
                f"{kind}SharedMemory{verb}"
                for kind in ("System", "Cuda")
                for verb in ("Status", "Register", "Unregister")
            )
        ),
        "model-config": _rpcs("ModelConfig"),
        "model-repository": _rpcs("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
        "statistics": _rpcs("ModelStatistics"),
        "trace": _rpcs("TraceSetting"),
        "logging": _rpcs("LogSettings"),
        "reflection": tuple(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")
        ),
    }
)

#: The paths of the RPCs that can change the server.
CHANGES: Final = _rpcs(
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "TraceSetting",
    "LogSettings",
    *(f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Register", "Unregister")),
)
#: The groups that have endpoints of REST.
REST_GROUPS: Final = tuple(name for name in PROTOCOLS if name != "reflection")
_GROUPS: Final[Mapping[str, Sequence[str]]] = {FLAG: tuple(PROTOCOLS), HTTP_FLAG: REST_GROUPS}

_HEADER_PREFIX: Final = "triton-grpc-protocol-"
#: Metadata names that gRPC allows, and values that it sends unencoded.
_KEY: Final = re.compile(r"[0-9a-z_.-]+")
_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"(?! )[ -~]+(?<! )")
_FORM: Final = "write PROTOCOLS:KEY=VALUE, such as model-repository,logging:admin-key=SECRET"


@dataclass(frozen=True, slots=True)
class RestrictedProtocol:
    """One value of the flag.

    Attributes:
        protocols: the restricted groups, keys of PROTOCOLS.
        header: the name of the metadata that a caller has to send, in lower case.
        value: the value that it has to have. It is a secret, which ``repr`` leaves out.
    """

    protocols: tuple[str, ...]
    header: str
    value: str = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all restricted RPCs."""
        return tuple(path for protocol in self.protocols for path in PROTOCOLS[protocol])


def parse_restrictions(texts: Sequence[str], flag: str = FLAG) -> tuple[RestrictedProtocol, ...]:
    """Read all values of the flag, or of REST's.

    Raises:
        ConfigurationError: one of them is not of the flag's form, or a protocol is unknown, or named twice.
    """
    restrictions: list[RestrictedProtocol] = []
    seen: set[str] = set()
    for text in texts:
        restriction = _parse(text, flag)
        for protocol in restriction.protocols:
            if protocol in seen:
                raise _mistake(
                    f"{_NOUNS[flag]} '{protocol}' can not be specified in multiple config groups",
                    text,
                    "name each of them once, in all of these flags together",
                    flag,
                )
            seen.add(protocol)
        restrictions.append(restriction)
    return tuple(restrictions)


def by_group(
    grpc: Iterable[RestrictedProtocol], rest: Iterable[RestrictedProtocol]
) -> Mapping[str, RestrictedProtocol]:
    """What restricts each group over REST. What is gRPC's holds where REST has none of its own: both are spoken on one
    port.
    """
    return {group: one for one in (*grpc, *rest) for group in one.protocols}


def _parse(text: str, flag: str) -> RestrictedProtocol:
    groups, colon, rest = text.partition(":")
    key, equals, value = rest.partition("=")
    if not colon or not equals or "=" in groups:
        raise _mistake("is not PROTOCOLS:KEY=VALUE", text, _FORM, flag)
    protocols = tuple(name.strip() for name in groups.split(","))
    for name in protocols:
        if name not in _GROUPS[flag]:
            raise _mistake(f"unknown {_NOUNS[flag]} '{name}'", text, f"choose from {', '.join(_GROUPS[flag])}", flag)
    if not key:
        raise _mistake("has an empty key", text, _FORM, flag)
    # Metadata whose name ends in "-bin" have base64 values.
    if flag == HTTP_FLAG:
        if not _FIELD_NAME.fullmatch(key):
            raise _mistake(f"no header field can have the name '{key}'", text, "make it of letters, digits and -", flag)
    elif not _KEY.fullmatch(key) or key.endswith("-bin"):
        remedy = "make it of a-z, 0-9, '_', '-' and '.', without '-bin' at its end"
        raise _mistake(f"no metadata can have the key '{key}'", text, remedy, flag)
    if not value:
        raise _mistake("has an empty value", text, _FORM, flag)
    if not _VALUE.fullmatch(value):
        remedy = "make it of printable ASCII, without spaces at its ends"
        raise _mistake(f"has a value that no {_CARRIERS[flag]} can have", text, remedy, flag)
    return RestrictedProtocol(protocols, key if flag == HTTP_FLAG else _HEADER_PREFIX + key, value)


def _mistake(problem: str, text: str, remedy: str, flag: str) -> ConfigurationError:
    return ConfigurationError(problem, key=flag, value=without_secret(text), remedy=remedy)


def without_secret(text: str) -> str:
    """The flag's value with *** in place of everything that may be the secret, or a part of it."""
    head, equals, _ = text.partition("=")
    if equals:
        return head + "=***"
    groups, colon, _ = text.partition(":")
    known = all(name.strip() in PROTOCOLS for name in groups.split(","))
    return (groups if known else "***") + (":***" if colon else "")
