"""Text models in this process, as a server loads and runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import trio

from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.text.interface import DEFAULT_OPTIONS, Text, TextModel, TextOptions, TextResult
from toutates.backends.text.kind import TextKind
from toutates.engine.servable import Host, Servable
from toutates.models.kinds import load_version
from toutates.models.repository import scan_model
from toutates.models.table import ServedVersion
from toutates.system.placement import Placement

__all__ = ["compute", "load", "running", "served"]


def load(path: Path) -> ServedVersion:
    """Load a folder, as a server does."""
    [version] = scan_model(path).versions
    return load_version([TextKind(SessionOptions())], path.name, version, overridden=False, placement=Placement())


@contextmanager
def served(path: Path) -> Iterator[TextModel]:
    """A model that computes, until the block is over."""
    version = load(path)
    model = version.servable
    assert isinstance(model, TextModel)
    with running(version.servable):
        yield model
    version.servable.free()


@contextmanager
def running(servable: Servable) -> Iterator[None]:
    """Run the threads of a servable until the block is over, and close it."""
    tokens: SimpleQueue[trio.lowlevel.TrioToken] = SimpleQueue()
    ended: list[BaseException] = []

    async def main() -> None:
        tokens.put(trio.lowlevel.current_trio_token())
        await servable.run(Host(lambda: (), (), lambda: None, lambda: None))

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="served model")
    thread.start()
    try:
        yield
    finally:
        trio.from_thread.run_sync(servable.close, trio_token=tokens.get())
        thread.join()
    assert not ended


def compute(
    model: TextModel,
    texts: Sequence[Text],
    options: TextOptions = DEFAULT_OPTIONS,
    is_wanted: Callable[[int], bool] = lambda by_ns: True,
) -> TextResult:
    """Compute texts, and wait for the result."""
    results: list[TextResult] = []
    done = threading.Event()

    def on_done(result: TextResult) -> None:
        results.append(result)
        done.set()

    model.compute(texts, options, on_done, is_wanted)
    assert done.wait(600)
    [result] = results
    return result
