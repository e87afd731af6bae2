"""Python models that go wrong: the caller hears it in a sentence, everybody else notices nothing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.e2e.process import ServerProcess, is_alive, running
from tests.e2e.python_models import add_model
from tests.waiting import wait_until

pytestmark = pytest.mark.long

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils", reason="has no wheel for free-threaded Python")

#: What a model does when the first number of a request is that; all others are answered.
FAULTS = {
    "exits": ("os._exit(3)", "is not healthy: it has ended with status 3"),
    "exits in Python's way": ("sys.exit('enough')", "is not healthy: it has ended with status 1; it said last: enough"),
    "segfaults": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV.*Fatal Python error: Segmentation fault"),
    "hangs": ("time.sleep(1000)", "it has not answered for 2 s"),
    "ignores signals and hangs": ("ignore(); time.sleep(1000)", "it has not answered for 2 s"),
    "closes its files": ("os.closerange(3, 200)", "is not healthy: it has"),
    "writes over its socket": ("write(b'x' * 100)", "is not healthy: it has sent"),
    "truncates its memory": ("truncate()", "OSError|Errno"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9 \\(SIGKILL\\) has ended it"),
}
_RUN = "".join(f"    if number == {at}:\n        {what}\n" for at, (what, _) in enumerate(FAULTS.values()))
METHODS = f"""
def execute(self, requests):
    number = int(input_of(requests[0])[0, 0])
{_RUN}    if number == 100:
        for at in range(20000):
            print("line", at)
    if number == 102:
        os.fork()  # both go on from here
    if number == 101:
        sys.stdout.write("x" * 50_000_000)
    return [answer(request, input_of(request)) for request in requests]

def finalize(self):
    raise RuntimeError("not now")
"""
HEAD_MORE = """
def files():
    for name in os.listdir("/proc/self/fd"):
        try:
            yield int(name), os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass

def ignore():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

def write(data):
    for number, target in files():
        if target.startswith("socket:"):
            os.write(number, data)
    time.sleep(1000)

def truncate():
    for number, target in files():
        if "memfd" in target:
            os.ftruncate(number, 0)


class TritonPythonModel:
"""
LOADS = {
    "no syntax": ("def (", "SyntaxError"),
    "no class": ("x = 3", "has no class TritonPythonModel"),
    "raises at import": ("raise ValueError('at import')", "ValueError: at import"),
    "exits at import": (
        "import os; print('good bye', flush=True); os._exit(7)",
        "ended with status 7; it said last: good bye",
    ),
    "raises in initialize": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        lorem_ipsum",
        "name 'lorem_ipsum' is not defined\n\nAt:\n  1/model.py(3): initialize",
    ),
    "lacks a file": (
        "open(__file__ + '.weights')",
        "No such file or directory: '1/model.py.weights'",
    ),
    "raises in auto_complete_config": (
        "class TritonPythonModel:\n    def auto_complete_config(config):\n        config.add_input({'nam': 'x'})",
        "contains property other than 'name', 'data_type', 'dims' and 'optional'",
    ),
    "completes nothing": (
        "class TritonPythonModel:\n    def auto_complete_config(config):\n        return 3",
        "must return a valid pb.ModelConfig object",
    ),
    "hangs at start": ("import time; time.sleep(1000)", "it has not answered for 1 s"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.e2e import python_models

    root = tmp_path_factory.mktemp("models")
    add_model(root, "good")
    head = python_models.HEAD.replace("class TritonPythonModel:\n", "") + HEAD_MORE
    add_model(root, "faulty", METHODS, head=head, more=_TIMEOUT % ("execute", 2))
    add_model(root, "patient", METHODS, head=head)
    for name, (text, _) in LOADS.items():
        folder = add_model(root, name.replace(" ", "_"), more=_TIMEOUT % ("start", 1 if "hangs" in name else 60))
        (folder / "1" / "model.py").write_text(text + "\n")
    return root


_TIMEOUT = 'dynamic_batching {} parameters { key: "toutates.%s_timeout_s" value { string_value: "%d" } }'


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ["--model-control-mode", "explicit", "--load-models", "good,faulty,patient"]
    with running(root, tmp_path_factory.mktemp("log"), flags=flags) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as own:
        yield own


def reload(client: Any) -> None:
    """Have the count of deaths begin anew."""
    client.unload_model("faulty")
    client.load_model("faulty")


def ask(client: Any, number: float, model: str = "faulty") -> Any:
    rows = np.full((1, 4), number, np.float32)
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(rows)
    npt.assert_array_equal(client.infer(model, [tensor], client_timeout=120).as_numpy("y"), rows)


@pytest.mark.parametrize("name", FAULTS)
def test_a_process_that_goes_wrong_fails_its_requests_and_comes_back(client: Any, name: str) -> None:
    reload(client)
    with pytest.raises(utils.InferenceServerException, match=FAULTS[name][1]) as error:
        ask(client, list(FAULTS).index(name))
    assert error.value.status() == "StatusCode.INTERNAL"
    assert str(error.value.message()).startswith("Failed to process the request(s) for model ")
    ask(client, 50, "good")
    ask(client, 50)


def test_a_process_that_dies_again_and_again_is_started_more_and_more_rarely(client: Any) -> None:
    reload(client)
    told: list[str] = []
    while not told or "it is started again in" not in told[-1]:
        assert len(told) < 8, "the pauses do not grow"  # on a slow machine the first ones may be over when it is asked
        with pytest.raises(utils.InferenceServerException, match="status 3") as error:
            ask(client, 0)
        told.append(str(error.value.message()))
    assert len(told) > 2, "the first time it is started again at once"
    assert re.search(r"status 3.*; it is started again in \d", told[-1])

    def works() -> bool:
        try:
            ask(client, 50)
        except utils.InferenceServerException:
            return False
        return True

    wait_until(works)


def test_what_a_model_forks_does_not_answer_in_its_place(client: Any) -> None:
    for _ in range(3):
        ask(client, 102, "patient")
        ask(client, 50, "patient")


@pytest.mark.parametrize("number", [100, 101])
def test_what_a_model_prints_is_bounded(client: Any, server: ServerProcess, number: int) -> None:
    before = len(server.log)
    ask(client, number, "patient")
    ask(client, 50, "patient")
    assert len(server.log) - before < 200_000


@pytest.mark.quick
@pytest.mark.parametrize("name", LOADS)
def test_a_model_that_cannot_be_loaded_says_why(client: Any, name: str, root: Path) -> None:
    with pytest.raises(utils.InferenceServerException) as caught:
        client.load_model(name.replace(" ", "_"))
    reasons = {one.name: one.reason for one in client.get_model_repository_index().models}
    reason = reasons[name.replace(" ", "_")]
    assert LOADS[name][1] in reason
    assert str(root) not in reason + str(caught.value)
    ask(client, 50, "good")


def test_finalize_that_raises_is_logged_and_the_model_unloaded(client: Any, server: ServerProcess) -> None:
    client.load_model("faulty")
    ask(client, 50)
    client.unload_model("faulty")
    wait_until(lambda: "RuntimeError: not now" in server.log)


def children_of(pid: int, program: str = "bootstrap.py") -> list[int]:
    """The processes of models; or the one that kills what these have forked when the server is gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == pid and program.encode() in command:
                found.append(int(entry.name))
    return found


def links_of(pid: int) -> Iterator[str]:
    for entry in (Path("/proc") / str(pid) / "fd").iterdir():
        try:
            yield os.readlink(entry)
        except OSError:
            pass  # closed meanwhile


def test_loads_and_unloads_leave_nothing_behind(client: Any, server: ServerProcess) -> None:
    def count() -> tuple[int, int]:
        return server.open_files(), len(children_of(server.process.pid))

    def files(what: str) -> int:
        return sum(what in link for link in links_of(server.process.pid))

    for name in ("faulty", "patient"):
        client.unload_model(name)
    # What the server closes only when it has noticed the end of a process.
    wait_until(lambda: [len(children_of(server.process.pid)), files("pidfd")] == [1, 1])
    before = count()
    for name in ("faulty", "no_class", "faulty", "raises_in_initialize"):
        try:
            client.load_model(name)
            ask(client, 50, name)
        except utils.InferenceServerException:
            assert name != "faulty"
        client.unload_model(name)
    wait_until(lambda: all(now <= then for now, then in zip(count(), before, strict=True)))


def test_a_version_that_nobody_asks_for_leaves_no_shared_memory(client: Any, server: ServerProcess) -> None:
    """Also where all threads of the server sleep then, each of which may have made a part of it."""

    def shared() -> tuple[int, int]:
        maps = (Path("/proc") / str(server.process.pid) / "maps").read_text()
        return maps.count("/memfd:toutates"), sum("/memfd:toutates" in link for link in links_of(server.process.pid))

    def has_less(before: tuple[int, int]) -> bool:
        return all(now < then for now, then in zip(shared(), before, strict=True))

    def has_at_most(most: tuple[int, int]) -> bool:
        return all(now <= then for now, then in zip(shared(), most, strict=True))

    client.unload_model("faulty")
    left: list[tuple[int, int]] = []
    for _ in range(3):
        client.load_model("faulty")
        ask(client, 50)
        with_it = shared()
        client.unload_model("faulty")
        wait_until(partial(has_less, with_it))
        # It goes part by part: what there is now may be more than what stays, and no later one may leave more.
        left = left or [shared()]
        wait_until(partial(has_at_most, left[0]))


def test_a_model_that_hangs_does_not_keep_the_server_from_its_end(tmp_path: Path) -> None:
    models, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    begun = tmp_path / "begun"
    add_model(
        models, "hanging", f"def execute(self, requests):\n    open({str(begun)!r}, 'w').close(); time.sleep(1000)"
    )
    with running(models, log, flags=["--shutdown-grace", "0"]) as process:
        with triton.InferenceServerClient(process.address) as client:
            tensor = triton.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
            call = client.async_infer("hanging", [tensor], lambda result, error: None)
            wait_until(begun.exists)
            call.cancel()
            assert client.is_server_live()  # which knows by then that the caller has left
        assert process.stop() == 0  # and not after a thousand seconds
        assert "the server ends, and it has not answered" in process.log


def test_nothing_is_left_when_the_server_is_killed(root: Path, tmp_path: Path) -> None:
    flags = ["--model-control-mode", "explicit", "--load-models", "good"]
    with running(root, tmp_path, flags=flags) as process:
        children = children_of(process.process.pid)
        assert children
        # What has a name would stay.
        for pid in (process.process.pid, *children):
            assert not [link for link in links_of(pid) if link.startswith("/dev/shm/")]
            assert "/dev/shm/" not in (Path("/proc") / str(pid) / "maps").read_text()
        process.stop(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, children)))


FORKS = """
def initialize(self, args):
    import subprocess
    self.started = [subprocess.Popen(["sleep", "1000"]).pid]
    pid = os.fork()
    if not pid:
        time.sleep(1000)
    self.started.append(pid)

def execute(self, requests):
    return [answer(request, np.array([[*self.started, 0, 0]], np.float32)) for request in requests]
"""


@pytest.mark.parametrize("guard_is_killed", [False, True])
def test_what_a_model_has_forked_ends_with_a_server_that_is_killed(tmp_path: Path, guard_is_killed: bool) -> None:
    models, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    add_model(models, "forks", FORKS)
    with running(models, log) as process:
        started: list[int] = []

        def ask_who() -> None:
            with triton.InferenceServerClient(process.address) as client:
                tensor = triton.InferInput("x", [1, 4], "FP32")
                tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
                started.extend(int(pid) for pid in client.infer("forks", [tensor]).as_numpy("y")[0, :2])

        ask_who()
        [guard] = children_of(process.process.pid, "group_guard.py")
        if guard_is_killed:
            os.kill(guard, signal.SIGKILL)
            wait_until(lambda: not is_alive(guard))
            os.kill(children_of(process.process.pid)[0], signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, started)))  # they were the former process's
            ask_who()
            [guard] = children_of(process.process.pid, "group_guard.py")
        assert all(map(is_alive, started[-2:]))
        process.stop(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, [*started, guard])))
