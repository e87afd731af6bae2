"""Restricted protocols: groups of RPCs that only callers with a secret may use, in the words of Triton's flag.

    --grpc-restricted-protocol=PROTOCOLS:KEY=VALUE

restricts every RPC of the groups PROTOCOLS to calls whose metadata have ``triton-grpc-protocol-KEY: VALUE``. This
module reads the flag; ``toutates.api.grpc.guards`` enforces it. The value is a secret: no text made here shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = ["FLAG", "PROTOCOLS", "RestrictedProtocol", "parse_restrictions", "without_secret"]

FLAG: Final = "--grpc-restricted-protocol"

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

_HEADER_PREFIX: Final = "triton-grpc-protocol-"
#: Metadata names that gRPC allows, and values that it sends unencoded.
_KEY: Final = re.compile(r"[0-9a-z_.-]+")
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


def parse_restrictions(texts: Sequence[str]) -> tuple[RestrictedProtocol, ...]:
    """Read all values of the flag.

    Raises:
        ConfigurationError: one of them is not of the flag's form, or a protocol is unknown, or named twice.
    """
    restrictions: list[RestrictedProtocol] = []
    seen: set[str] = set()
    for text in texts:
        restriction = _parse(text)
        for protocol in restriction.protocols:
            if protocol in seen:
                raise _mistake(
                    f"restricted protocol '{protocol}' can not be specified in multiple config groups",
                    text,
                    "name each protocol once, in all of these flags together",
                )
            seen.add(protocol)
        restrictions.append(restriction)
    return tuple(restrictions)


def _parse(text: str) -> RestrictedProtocol:
    groups, colon, rest = text.partition(":")
    key, equals, value = rest.partition("=")
    if not colon or not equals or "=" in groups:
        raise _mistake("is not PROTOCOLS:KEY=VALUE", text, _FORM)
    protocols = tuple(name.strip() for name in groups.split(","))
    for name in protocols:
        if name not in PROTOCOLS:
            raise _mistake(f"unknown restricted protocol '{name}'", text, f"choose from {', '.join(PROTOCOLS)}")
    if not key:
        raise _mistake("has an empty key", text, _FORM)
    # Metadata whose name ends in "-bin" have base64 values.
    if not _KEY.fullmatch(key) or key.endswith("-bin"):
        remedy = "make it of a-z, 0-9, '_', '-' and '.', without '-bin' at its end"
        raise _mistake(f"no metadata can have the key '{key}'", text, remedy)
    if not value:
        raise _mistake("has an empty value", text, _FORM)
    if not _VALUE.fullmatch(value):
        remedy = "make it of printable ASCII, without spaces at its ends"
        raise _mistake("has a value that no metadata can have", text, remedy)
    return RestrictedProtocol(protocols, _HEADER_PREFIX + key, value)


def _mistake(problem: str, text: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, key=FLAG, value=without_secret(text), remedy=remedy)


def without_secret(text: str) -> str:
    """The flag's value with *** in place of everything that may be the secret, or a part of it."""
    head, equals, _ = text.partition("=")
    if equals:
        return head + "=***"
    groups, colon, _ = text.partition(":")
    known = all(name.strip() in PROTOCOLS for name in groups.split(","))
    return (groups if known else "***") + (":***" if colon else "")
