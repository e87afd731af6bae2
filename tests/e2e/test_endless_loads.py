"""Models whose code never comes to its end do not keep the server from its own, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.control import EXPLICIT, POLL
from tests.e2e.process import NO_HTTP, PYTHON, environment, is_alive, running
from tests.e2e.python_models import HEAD, IDENTITY, add_model
from tests.e2e.support import INFER, Tensor, channel_to, pb, request
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: Says which process it is, and never returns; what it forks, and what asks it to end, does not help.
FOREVER: Final = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def forever():
    import threading
    child = os.fork()
    with open(os.environ["NOTED"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    threading.Event().wait()
"""
HEAD_OF_FOREVER: Final = HEAD.replace("class TritonPythonModel:\n", f"{FOREVER}\nclass TritonPythonModel:\n")
PARTS: Final = {
    "import": (f"{HEAD_OF_FOREVER.replace('class Triton', 'forever()' + chr(10) + 'class Triton')}", IDENTITY),
    "auto_complete_config": (
        HEAD_OF_FOREVER,
        IDENTITY + "\n@staticmethod\ndef auto_complete_config(config):\n    forever()\n",
    ),
    "initialize": (HEAD_OF_FOREVER, IDENTITY + "\ndef initialize(self, args):\n    forever()\n"),
    "finalize": (HEAD_OF_FOREVER, IDENTITY + "\ndef finalize(self):\n    forever()\n"),
}
GRACE: Final = ("--shutdown-grace", "0.5")


def add_endless(repository: Path, part: str = "initialize", **options: Any) -> None:
    head, methods = PARTS[part]
    add_model(repository, "endless", methods, head=head, **options)


def noted(folder: Path) -> list[int]:
    """The processes in which the model's code is."""
    path = folder / "noted"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@contextmanager
def starting(repository: Path, folder: Path, flags: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A server that need not get as far as serving."""
    words = [PYTHON, "-m", "toutates", "--model-repository", str(repository), "--grpc-addr", "127.0.0.1:0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, *NO_HTTP, *flags], stdout=log, stderr=log, env={**environment(), "NOTED": str(folder / "noted")}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a server that serves whatever loads later."""
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))

    def make(*flags: str) -> Any:
        (tmp_path / "models").mkdir(exist_ok=True)
        return running(tmp_path / "models", tmp_path, [*GRACE, *flags])

    return make


def assert_ended(process: Any, folder: Path, code: int = 1, *, noted_before: int = 2) -> None:
    assert process.wait(60) == code
    assert len(noted(folder)) >= noted_before
    wait_until(lambda: not any(is_alive(pid) for pid in noted(folder)))
    assert "Traceback" not in (folder / "log").read_text()


@pytest.mark.parametrize("part", ["import", "auto_complete_config", "initialize"])
def test_a_load_that_never_ends_does_not_outlive_the_grace_of_a_start(tmp_path: Path, part: str) -> None:
    add_endless(tmp_path / "models", part)
    with starting(tmp_path / "models", tmp_path, GRACE) as process:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        process.terminate()
        assert_ended(process, tmp_path)
    log = (tmp_path / "log").read_text()
    assert "loads of Python models that have not ended are cut off: 1" in log
    assert "the server ends, and it has not answered" in log


@pytest.mark.quick
def test_a_second_signal_ends_a_load_at_once(tmp_path: Path) -> None:
    add_endless(tmp_path / "models")
    with starting(tmp_path / "models", tmp_path, ("--shutdown-grace", "3600")) as process:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: " in (tmp_path / "log").read_text())
        process.terminate()
        assert_ended(process, tmp_path)


def test_several_processes_end_with_their_loads(tmp_path: Path) -> None:
    add_endless(tmp_path / "models")
    with starting(tmp_path / "models", tmp_path, (*GRACE, "--processes", "2")) as process:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        process.terminate()
        assert_ended(process, tmp_path)


def test_a_thread_that_never_ends_ends_with_the_process(tmp_path: Path) -> None:
    add_endless(tmp_path / "models", isolation="thread")
    head = HEAD.replace("class TritonPythonModel:\n", FOREVER.replace("os.fork()", "0") + "class TritonPythonModel:\n")
    head = head.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n", "")
    (tmp_path / "models" / "endless" / "1" / "model.py").write_text(
        head + "".join(f"    {line}\n" for line in PARTS["initialize"][1].splitlines())
    )
    with starting(tmp_path / "models", tmp_path, GRACE) as process:
        wait_until(lambda: noted(tmp_path))
        process.terminate()
        assert_ended(process, tmp_path, noted_before=1)
    assert "the server does not end by itself: ort endless cannot be ended" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("mode", ["explicit", "poll", "on-demand"])
def test_a_load_under_way_while_others_are_served_does_not_outlive_the_grace(
    tmp_path: Path, serving: Any, mode: str
) -> None:
    flags = {"explicit": EXPLICIT, "poll": POLL, "on-demand": ("--model-control-mode", "on-demand")}[mode]
    if mode == "on-demand":
        add_endless(tmp_path / "models")
    with serving(*flags) as process, channel_to(process.address) as channel:
        add_later(tmp_path, mode)
        future = ask(channel, mode)
        wait_until(lambda: len(noted(tmp_path)) == 2)
        process.process.terminate()
        assert_ended(process.process, tmp_path)
        assert future is None or future.exception() is not None


def add_later(folder: Path, mode: str) -> None:
    """The model, put there as a whole, where it was not there from the start."""
    if mode != "on-demand":
        add_endless(folder / "made")
        os.rename(folder / "made" / "endless", folder / "models" / "endless")


def ask(channel: Any, mode: str) -> Any:
    """What has the model loaded; None for nothing."""
    if mode == "poll":
        return None
    if mode == "explicit":
        message: Any = pb.RepositoryModelLoadRequest(model_name="endless")
        method = "/inference.GRPCInferenceService/RepositoryModelLoad"
    else:
        message, method = request("endless", Tensor.of("x", "FP32", [[1, 2, 3, 4]])), INFER
    return channel.unary_unary(method).future(message.SerializeToString(), timeout=120)


def test_finalize_that_never_ends_is_cut_off(tmp_path: Path, serving: Any) -> None:
    add_endless(tmp_path / "models", "finalize")
    with serving() as process:
        process.process.terminate()
        assert_ended(process.process, tmp_path, 0)
        assert "finalize of endless_0 failed" in process.log


def test_a_thread_that_a_model_has_started_does_not_outlive_the_server(tmp_path: Path, serving: Any) -> None:
    methods = IDENTITY + "\ndef initialize(self, args):\n    import threading\n"
    methods += "    threading.Thread(target=threading.Event().wait, daemon=False).start()\n"
    add_model(tmp_path / "models", "threads", methods, isolation="thread")
    with serving() as process:
        process.process.terminate()
        assert process.process.wait(60) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_process_that_starts_again_for_ever_is_ended(tmp_path: Path, serving: Any, again: bool) -> None:
    methods = IDENTITY.replace("    return", "    os.kill(os.getpid(), 9)\n    return")
    methods += (
        "\ndef initialize(self, args):\n    if os.path.exists(os.environ['NOTED'] + '.once'):\n        forever()\n"
    )
    methods += "    open(os.environ['NOTED'] + '.once', 'w').close()\n"
    add_model(tmp_path / "models", "endless", methods, head=HEAD_OF_FOREVER)
    flags = ("--shutdown-grace", "3600") if again else ()
    with serving(*flags) as process, channel_to(process.address) as channel:
        future = ask(channel, "on-demand")
        wait_until(lambda: len(noted(tmp_path)) == 2)
        process.process.terminate()
        if again:
            wait_until(lambda: "SIGTERM: " in process.log)
            process.process.terminate()
        assert process.process.wait(60) in (0, 1)
        assert future.exception() is not None
        wait_until(lambda: not any(is_alive(pid) for pid in noted(tmp_path)))
