"""What there is to fuzz, by name: for ``fuzz/run.py``, for ``fuzz/guided.py``, and for the tests that replay cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.fuzz import (
    alike_bodies,
    configuration,
    cuda_regions,
    header_blocks,
    http_oracle,
    http_sessions,
    infer_requests,
    policy_queues,
    region_requests,
    rest_requests,
    sessions,
    stream_messages,
    text_requests,
)

__all__ = ["CORPUS", "CRASHERS", "TARGETS", "Target", "kept_cases"]

#: Cases that reach far, from which the coverage-guided fuzzer starts, by target.
CORPUS: Final = Path(__file__).resolve().parent.parent.parent / "fuzz" / "corpus"
#: Cases that broke an invariant once, by target.
CRASHERS: Final = Path(__file__).resolve().parent / "crashers"


@dataclass(frozen=True, slots=True)
class Target:
    """One invariant, and cases for it.

    Attributes:
        make_case: a case from a source of randomness.
        check: raises whatever it likes where the invariant breaks; takes any bytes.
        guided: whether coverage guides a fuzzer of its own to further cases.
    """

    make_case: Callable[[random.Random], bytes]
    check: Callable[[bytes], None]
    guided: bool = False


TARGETS: Final = MappingProxyType(
    {
        "connection": Target(sessions.make_case, sessions.check, guided=True),
        "header_blocks": Target(header_blocks.make_case, header_blocks.check),
        "http_connection": Target(http_sessions.make_case, http_sessions.check, guided=True),
        "http_oracle": Target(http_oracle.make_case, http_oracle.check, guided=True),
        "infer_request": Target(infer_requests.make_case, infer_requests.check, guided=True),
        "rest_request": Target(rest_requests.make_case, rest_requests.check, guided=True),
        "text_request": Target(text_requests.make_case, text_requests.check, guided=True),
        "alike_bodies": Target(alike_bodies.make_case, alike_bodies.check, guided=True),
        "region_requests": Target(region_requests.make_case, region_requests.check),
        "cuda_regions": Target(cuda_regions.make_case, cuda_regions.check),
        "policy_queues": Target(policy_queues.make_case, policy_queues.check),
        "stream_messages": Target(stream_messages.make_case, stream_messages.check),
        "configuration": Target(configuration.make_case, configuration.check),
    }
)


def kept_cases(name: str) -> Iterator[Path]:
    """The files that a test replays for a target."""
    for folder in (CORPUS / name, CRASHERS / name):
        if folder.is_dir():
            yield from sorted(path for path in folder.iterdir() if path.is_file())
