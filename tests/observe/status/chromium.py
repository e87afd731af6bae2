"""Chromium without a window, driven by its DevTools protocol over a pair of pipes; it needs no driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.waiting import PATIENCE_S

__all__ = ["Tab", "browser", "find_chromium"]

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ANSWER_S: Final = 120.0


def find_chromium() -> str:
    """The browser's path; skips the test where there is none."""
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("there is no Chromium here: tests/peers.sh")


class Tab:
    """The tab of a browser."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._number = 0
        self._rest = b""
        self._target = ""
        self._session: str | None = None
        #: what the page wrote to its console, and what it threw or was refused
        self.complaints: list[str] = []

    def open(self) -> None:
        """Make the tab, in the place of the one that was open before."""
        self._session = None
        if self._target:
            self.command("Target.closeTarget", targetId=self._target)
        # A context of its own, without cookies, cache and processes of the tab before.
        context = self.command("Target.createBrowserContext")["browserContextId"]
        target = self.command("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._target = target
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints.clear()
        for domain in ("Page", "Runtime", "Log", "Performance", "HeapProfiler"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _ANSWER_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            readable, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert readable, "Chromium does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        methods = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        if event.get("method") in methods and event.get("sessionId") == self._session:
            self.complaints.append(json.dumps(event["params"]))

    def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Choose the size of the window, in CSS pixels, and what the user likes."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = "dark" if dark else "light"
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, url: str) -> None:
        """Open a page."""
        self.command("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of an element; "" where there is none."""
        return str(
            self.evaluate(f"(document.querySelector({json.dumps(selector)}) || {{textContent: ''}}).textContent")
        )

    def wait_for(self, what: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
        """Look again and again until ``what`` is true; returns it."""
        until = time.monotonic() + seconds
        while not (value := what()):
            assert time.monotonic() < until, f"did not come: {self.text('body')[:2000]}"
            time.sleep(0.1)
        return value

    def heap_and_nodes(self) -> tuple[int, int]:
        """Bytes of JavaScript's heap after a collection, and nodes of the DOM."""
        self.command("HeapProfiler.collectGarbage")
        counters = self.command("Memory.getDOMCounters")
        return int(self.command("Runtime.getHeapUsage")["usedSize"]), int(counters["nodes"])

    def screenshot(self, path: Path) -> None:
        """Write the whole page to a PNG."""
        content = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": content["width"], "height": content["height"], "scale": 1}
        answer = self.command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser(folder: Path, *flags: str) -> Iterator[Tab]:
    """A browser with one tab, which has to be opened, for the block.

    Args:
        folder: an empty one, for its profile.
        flags: of Chromium, beside those that it always has.
    """
    path = find_chromium()
    to_read, write = os.pipe()
    read, to_write = os.pipe()
    words = [
        path,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
        *flags,
        "about:blank",
    ]
    # Chromium reads commands from 3 and writes answers to 4; the shell puts the pipes there.
    shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words], pass_fds=(to_read, to_write), stdout=log, stderr=log
        )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Tab(write, read)
    finally:
        os.close(write)
        os.close(read)
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
