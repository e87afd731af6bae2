"""The subjects that take a real server: asked in one go, so that one server answers all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.contract.asking import serving
from tests.contract.logs import log_lines
from tests.contract.metrics import metric_lines
from tests.contract.processes import exit_lines, main_lines, signal_lines
from tests.contract.routes import route_lines, rpc_lines
from tests.contract.words import start_lines, word_lines
from tests.e2e.process import ServerProcess

__all__ = ["observe"]

_OF_SERVER: Final[Mapping[str, Callable[[ServerProcess], list[str]]]] = MappingProxyType(
    {
        "routes": route_lines,
        "rpcs": rpc_lines,
        "error-words": word_lines,
        "metrics": metric_lines,
        "log": log_lines,
    }
)


def observe(folder: Path) -> dict[str, list[str]]:
    """The lines of each subject; takes some ten seconds, most of which a command waits for a repository.

    Args:
        folder: an empty one.
    """
    with serving(folder / "server") as server, ThreadPoolExecutor(1) as pool:
        exits = pool.submit(exit_lines, folder / "exits")
        lines = {name: make(server) for name, make in _OF_SERVER.items()}
        lines["error-words"] = sorted((*lines["error-words"], *start_lines(folder / "start")))
        lines["signals"] = signal_lines(folder / "signals")
        lines["exit-codes"] = sorted((*main_lines(folder / "main"), *exits.result()))
        assert server.stop() == 0
    return lines
