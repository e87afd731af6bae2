"""Readers of the values that flags take: each turns a text into a value.

A reader raises ``argparse.ArgumentTypeError`` or ``ConfigurationError`` for a text that it cannot read. Neither names
the flag: the caller knows whether the text came from the command line, the environment or a file, and names that.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from toutates.backends.onnx.provider_names import PROVIDERS
from toutates.models.caching import LEAST_CACHE_BYTES
from toutates.models.repository import not_a_model_name
from toutates.models.turns import EXECUTION_COUNT, Limit
from toutates.repositories.web.allowed import plain_url
from toutates.system.address import INFERENCE_PORTS, Address, parse_address
from toutates.system.errors import ConfigurationError
from toutates.system.logs.levels import parse_levels
from toutates.system.topology import allowed_cpus, format_cpu_list, parse_cpu_list

__all__ = [
    "Reader",
    "address",
    "address_or_off",
    "boolean",
    "byte_size",
    "cache_size",
    "choice",
    "cpus",
    "hosts",
    "interval",
    "levels",
    "libraries",
    "model_name",
    "names",
    "origins",
    "positive",
    "providers",
    "rate_limit",
    "resource_limit",
    "seconds",
    "seconds_or_never",
    "share",
    "shared_ports",
    "whole",
    "whole_or_auto",
]

Reader = Callable[[str], Any]

#: Of lower-case letters, as browsers write it (RFC 6454 section 6.2).
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_HOST: Final = re.compile(r"[a-z0-9._-]+")
_DEFAULT_PORT: Final = re.compile(r"(?<=^http:)(//.*):80$|(?<=^https:)(//.*):443$")
_PROVIDERS: Final = {"trt": "tensorrt"} | {name: name for name in ("auto", *PROVIDERS)}


def whole(least: int, most: int = 10**18, said: str = "") -> Reader:
    """A reader of whole numbers from ``least`` to ``most``."""

    def read(text: str) -> int:
        # Of ASCII digits, and not so many that int() itself refuses.
        digits = text.removeprefix("-") if least < 0 else text
        if digits.isascii() and digits.isdigit() and len(digits) < 19 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {said or f'{least} to {most}'}")

    return read


#: Reads a whole number from 1 up.
positive: Final = whole(1, said="1 up")


def cache_size(text: str) -> int:
    """Read the size of the response cache: 0, or enough for an answer."""
    size: int = whole(0, said="0 up")(text)
    if 0 < size < LEAST_CACHE_BYTES:
        raise argparse.ArgumentTypeError(
            f"{size} bytes hold no answer; the response cache takes {LEAST_CACHE_BYTES} or more, or 0 for none"
        )
    return size


def byte_size(text: str) -> int:
    """Read a number of bytes, which may end in K, M, G or T for powers of 1,024."""
    match = re.fullmatch(r"([0-9]{1,15})(?:([KMGT])(?:i?B)?)?", text.strip(), re.IGNORECASE)
    size = 0 if match is None else int(match[1]) << (10 * " KMGT".index((match[2] or " ").upper()))
    if not size:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes from 1 up, such as 1073741824, 512M or 4G")
    return size


def byte_rate(text: str) -> int:
    """Read a number of bytes per second; 0 for none."""
    return 0 if text.strip() == "0" else byte_size(text)


def rate_limit(text: str) -> str:
    """Read whether runs are rated; Triton takes letters of any size."""
    return str(choice("off", EXECUTION_COUNT)(text.lower()))


def resource_limit(text: str) -> Limit:
    """Read how many there are of a resource of the rate limiter: NAME:COUNT or NAME:COUNT:DEVICE."""
    name, *numbers = text.split(":")
    if not name or len(numbers) not in (1, 2):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:COUNT or NAME:COUNT:DEVICE, such as R1:10 or R1:10:0")
    count, *device = [whole(0, 2**32 - 1)(number) for number in numbers]
    return Limit(name, count, device[0] if device else None)


def whole_or_auto(text: str) -> int:
    """A whole number from 1 up; 0 for "auto"."""
    return 0 if text == "auto" else int(positive(text))


def choice(*words: str, also: Mapping[str, str] = {}) -> Reader:
    """A reader of one of ``words``; ``also`` has further words for them."""

    def read(text: str) -> str:
        word = also.get(text, text)
        if word in words:
            return word
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(words)})")

    return read


def _number(text: str, most: float, said: str, least: float = 0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if least <= value <= most:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number {said}from {least} to {most}")


def seconds(text: str) -> float:
    """A time in seconds, from 0 to a day."""
    return _number(text, 86_400, "of seconds ")


def interval(text: str) -> float:
    """The seconds between two times at which something is done, from a tenth to a day."""
    return _number(text, 86_400, "of seconds ", least=0.1)


def seconds_or_never(text: str) -> float:
    """A time in seconds, up to a day; 0 gives infinity."""
    return seconds(text) or math.inf


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, 1, "")


def boolean(text: str) -> bool:
    """True or false, in the words that Triton takes."""
    word = text.lower()
    if word in ("true", "1", "on"):
        return True
    if word in ("false", "0", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def levels(text: str) -> str:
    """Levels of the log, checked (``toutates.system.logs.levels``)."""
    try:
        parse_levels(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def address(text: str) -> Address:
    """``HOST:PORT`` or ``[IPV6]:PORT``."""
    return parse_address(text, "")


def address_or_off(text: str) -> Address | None:
    """An address; None for "off"."""
    return None if text == "off" else address(text)


def names(text: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ConfigurationError("has an empty name", value=text, remedy="separate names by single commas")
    return found


def url_prefixes(text: str) -> tuple[str, ...]:
    """Beginnings of URLs, separated by commas. Each names its host in full."""
    found = names(text)
    for prefix in found:
        try:
            is_whole = plain_url(prefix).path == urlsplit(prefix).path and not urlsplit(prefix).query
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ConfigurationError(
                "is not the beginning of a URL",
                value=prefix,
                remedy="write one such as https://models.example/archives/",
            )
    return found


def origins(text: str) -> tuple[str, ...]:
    """Origins of pages as browsers name them, separated by commas; or "*" alone, for all."""
    found = tuple(_DEFAULT_PORT.sub(r"\1\2", one.lower()) for one in names(text))
    for origin in found:
        if origin == "*" and len(found) > 1:
            raise ConfigurationError("'*' means all origins, so no other may be named", value=text, remedy="choose one")
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigurationError(
                "is not an origin",
                value=origin,
                remedy="write a scheme, a host and perhaps a port: https://app.example",
            )
    return found


def hosts(text: str) -> tuple[str, ...]:
    """Names of hosts without ports, separated by commas."""
    found = tuple(one.lower().rstrip(".") for one in names(text))
    for host in found:
        if not _HOST.fullmatch(host):
            raise ConfigurationError("is not the name of a host", value=host, remedy="write one such as status.example")
    return found


def shared_ports(text: str) -> tuple[str, ...]:
    """Which ports are shared: one by its name, or both, or none, by a boolean."""
    if text in INFERENCE_PORTS:
        return (text,)
    try:
        return INFERENCE_PORTS if boolean(text) else ()
    except argparse.ArgumentTypeError:
        choices = ", ".join(INFERENCE_PORTS)
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false, or one of {choices}") from None


def model_name(text: str) -> str:
    """A name that a model's directory could have."""
    if not text or "/" in text or not text.isprintable() or not_a_model_name(text):
        raise ConfigurationError(
            "is no name of a model", value=text, remedy="write one without slashes, such as resnet50"
        )
    return text


def libraries(text: str) -> tuple[Path, ...]:
    """Paths of files and directories that exist, separated by commas."""
    paths = tuple(Path(name) for name in names(text))
    for path in paths:
        if not path.exists():
            raise ConfigurationError("there is no such file", value=str(path), remedy="correct the path")
    return paths


def providers(text: str) -> tuple[str, ...]:
    """Execution providers by priority, separated by commas."""
    found = [name.strip().lower() for name in text.split(",")]
    unknown: Sequence[str] = [name for name in found if name not in _PROVIDERS]
    if unknown:
        raise ConfigurationError(
            "unknown execution provider", value=unknown[0], remedy="choose from auto, cpu, cuda, tensorrt"
        )
    if "auto" in found and len(found) > 1:
        raise ConfigurationError("names auto and others", value=text, remedy="write auto alone, or the list without it")
    return tuple(dict.fromkeys(_PROVIDERS[name] for name in found))


def cpus(text: str) -> tuple[int, ...]:
    """A list of CPUs that the process may use, such as ``0-3,8``; ``()`` for "all"."""
    if text == "all":
        return ()
    allowed = allowed_cpus()
    remedy = f"name CPUs that the process may use, which are {format_cpu_list(allowed)}"
    try:
        found = parse_cpu_list(text)
    except ValueError as error:
        raise ConfigurationError(str(error), value=text, remedy=remedy) from None
    if not found <= allowed:
        outside = format_cpu_list(found - allowed)
        raise ConfigurationError(f"the process may not use CPU {outside}", value=text, remedy=remedy)
    return tuple(sorted(found))
