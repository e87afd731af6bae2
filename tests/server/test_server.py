"""The server as a whole, in this process: how it starts, how it stops, and what ends it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import PingAckReceived

from tests.graphs import DOUBLE
from tests.threads import cpus_of_threads
from tests.waiting import wait_until
from toutates.api.grpc.statuses import STATUSES
from toutates.backends.onnx import loader as loader_module
from toutates.backends.onnx.opening import load_session
from toutates.command.probe import probe
from toutates.models.manager import ModelManager
from toutates.net import GrpcService, Worker
from toutates.server import loading
from toutates.server import server as server_module
from toutates.server import workers as workers_module
from toutates.server.options import Options
from toutates.server.server import Server
from toutates.server.thread_plan import plan_threads
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError
from toutates.system.interpreter import describe_interpreter, gil_enabled
from toutates.system.placement import Placement
from toutates.system.topology import allowed_cpus, read_topology
from toutates.system.version import package_version

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(DOUBLE)
    return tmp_path / "repository"


class Running:
    """A server that has started, and its exit code once it has ended."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.code: int | None = None

    @property
    def address(self) -> Address:
        assert self.server.address is not None
        return Address(*self.server.address)

    async def probe(self) -> tuple[bool, str]:
        return await trio.to_thread.run_sync(probe, self.address, 60)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.code = await self.server.run(task_status=task_status)


@asynccontextmanager
async def started(options: Options) -> AsyncIterator[Running]:
    """A server that has to end by the end of the block, within some seconds."""
    running = Running(Server(options))
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(running.run)
            yield running


def options_of(repository: Path, **more: Any) -> Options:
    return Options((repository,), **{"grpc_addr": LOOPBACK, "metrics_addr": None, "http_addr": None, **more})


def run(main: Callable[[], Any]) -> None:
    trio.run(main)


def test_the_server_starts_answers_and_stops(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with started(options_of(repository)) as running:
            assert await running.probe() == (True, f"{running.address}: SERVING")
            running.server.stop()
        assert running.code == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((running.address.host, running.address.port))

    run(main)
    assert "m     1       READY x FP32[-1,4] y FP32[-1,4] 64" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_server(repository: Path, number: int) -> None:
    async def main() -> None:
        async with started(options_of(repository)) as running:
            os.kill(os.getpid(), number)
        assert running.code == 0

    run(main)


async def open_call(running: Running) -> trio.SocketStream:
    """A call whose request never ends."""
    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": "/inference.GRPCInferenceService/ModelInfer"}
    fields |= {":authority": "x", "te": "trailers", "content-type": "application/grpc"}
    connection.send_headers(1, list(fields.items()))
    connection.ping(b"received")
    stream = await trio.open_tcp_stream(running.address.host, running.address.port)
    await stream.send_all(connection.data_to_send())
    while not any(isinstance(event, PingAckReceived) for event in connection.receive_data(await stream.receive_some())):
        pass
    return stream


def test_calls_under_way_are_cut_off_at_the_end_of_the_grace(repository: Path) -> None:
    async def main() -> None:
        options = options_of(repository, shutdown_grace_s=0.2)
        async with started(options) as running, await open_call(running) as stream:
            running.server.stop()
            async for _ in stream:
                pass  # GOAWAY, then the end
        assert running.code == 1

    run(main)


def test_a_second_stop_ends_the_grace(repository: Path) -> None:
    async def main() -> None:
        options = options_of(repository, shutdown_grace_s=10_000)
        async with started(options) as running, await open_call(running) as stream:
            running.server.stop()
            await stream.receive_some()  # GOAWAY
            running.server.stop()
            async for _ in stream:
                pass
        assert running.code == 1

    run(main)


def test_cancelling_the_server_ends_its_threads(repository: Path) -> None:
    async def main() -> None:
        with trio.fail_after(120):
            running = Running(Server(options_of(repository, processing_cores=2)))
            async with trio.open_nursery() as nursery:
                await nursery.start(running.run)
                async with await open_call(running):
                    nursery.cancel_scope.cancel()
        assert running.code is None

    run(main)


def test_several_workers_share_the_port(repository: Path) -> None:
    async def main() -> None:
        async with started(options_of(repository, processing_cores=2)) as running:
            workers = running.server.workers.all
            # The system spreads connections by a hash of their ports: that all go to one is improbable beyond belief.
            streams = [await trio.open_tcp_stream(running.address.host, running.address.port) for _ in range(60)]
            await trio.to_thread.run_sync(wait_until, lambda: sum(worker.connections for worker in workers) == 60)
            assert all(worker.connections for worker in workers)
            assert (await running.probe())[0]
            for stream in streams:
                await stream.aclose()
            running.server.stop()
        assert running.code == 0

    run(main)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_fails_ends_the_server_with_a_failure(
    repository: Path, workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Worker):
        async def run(self, *listenings: Any, **more: Any) -> int:
            if self.name != "worker-0":
                return await super().run(*listenings, **more)
            raise RuntimeError("a bug")

    monkeypatch.setattr(workers_module, "Worker", Failing)
    codes: list[int] = []

    async def main() -> None:
        with trio.fail_after(120):
            codes.append(await Server(options_of(repository, processing_cores=workers)).run())

    run(main)
    assert codes == [1]
    assert "worker-0 failed; the server stops" in caplog.text
    assert "a bug" in caplog.text


def test_a_broken_model_is_shown_and_the_server_serves_without_being_ready(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = repository / "broken" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"nonsense")

    async def main() -> None:
        async with started(options_of(repository)) as running:
            assert await running.probe() == (False, f"{running.address}: NOT_SERVING")
            running.server.stop()
        assert running.code == 0

    run(main)
    assert "broken 1       UNAVAILABLE Internal: onnxruntime cannot load 'model.onnx'" in capfd.readouterr().out


def test_only_the_models_asked_for_are_loaded(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (repository / "other" / "1").mkdir(parents=True)

    async def main() -> None:
        async with started(options_of(repository, load_models=("m",))) as running:
            assert (await running.probe())[0]
            running.server.stop()

    run(main)
    assert "other" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("more", "is_ready"),
    [
        ({}, False),
        ({"model_control_mode": "poll"}, False),
        ({"model_control_mode": "explicit", "load_models": ()}, True),
        ({"strict_readiness": False}, True),
    ],
    ids=["none", "poll", "explicit", "readiness that is not strict"],
)
def test_a_server_without_models_is_ready_only_if_it_was_told_to_start_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], is_ready: bool
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with started(options_of(tmp_path, **more)) as running:
            assert (await running.probe())[0] is is_ready
            assert running.server.view is not None
            assert running.server.view.is_ready() is is_ready
            running.server.stop()

    run(main)
    reason = "no model is served: the model repository has none"
    assert (f"NOT ready: {reason}" in caplog.text) is not is_ready
    if "load_models" not in more:
        assert f"the model repository {tmp_path} has no models" in caplog.text


def test_a_repository_without_models_is_warned_of_with_the_path_that_would_be_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "resnet.onnx").write_bytes(DOUBLE)

    async def main() -> None:
        async with started(options_of(tmp_path)) as running:
            running.server.stop()

    run(main)
    assert (
        f"the model repository {tmp_path} has no models; the server is not ready until it has one: "
        f"{tmp_path}/resnet.onnx: lies in no model's directory, and is not served; "
        f"move it to '{tmp_path}/resnet/1/model.onnx'"
    ) in caplog.text


def test_a_models_own_directory_is_refused_as_the_repository(repository: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"name '{repository}'$"):
        server_module.run(options_of(repository / "m", exit_on_error=True))


def test_an_empty_repository_does_not_end_a_server_that_ends_on_errors(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(options_of(tmp_path, exit_on_error=True)) as running:
            running.server.stop()
        assert running.code == 0

    run(main)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_in_use_is_refused(repository: Path, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(ConfigurationError) as caught:
            server_module.run(options_of(repository, grpc_addr=address, processing_cores=workers))
    assert str(caught.value) == (
        f"--grpc-addr: cannot listen: Address already in use (got '{address}'); "
        "choose an address of this machine and a port that is free"
    )


@pytest.mark.parametrize(("shared", "other"), [("grpc", "http"), ("http", "grpc")])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_that_is_shared_leaves_the_other_alone(repository: Path, shared: str, other: str, workers: int) -> None:
    with ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True)) for _ in range(2)]
        grpc, http = (Address("127.0.0.1", one.getsockname()[1]) for one in ports)
        options = options_of(
            repository, grpc_addr=grpc, http_addr=http, shared_ports=(shared,), processing_cores=workers
        )
        with pytest.raises(ConfigurationError, match=f"--{other}-addr: cannot listen: Address already in use"):
            server_module.run(options)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused(repository: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--grpc-addr: cannot listen: "):
        server_module.run(options_of(repository, grpc_addr=Address(host, 0)))


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("workers", [1, 2])
def test_ipv6_is_served_and_the_address_of_all_takes_ipv4_too(repository: Path, workers: int) -> None:
    async def main() -> None:
        options = options_of(repository, grpc_addr=Address("::", 0), processing_cores=workers)
        async with started(options) as running:
            for host in ("::1", "127.0.0.1"):
                address = Address(host, running.address.port)
                assert await trio.to_thread.run_sync(probe, address, 10) == (True, f"{address}: SERVING")
            running.server.stop()

    run(main)


def test_a_repository_that_cannot_be_used_is_refused_where_errors_end_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--model-repository: there is no such directory"):
        server_module.run(options_of(tmp_path / "missing" / "models", exit_on_error=True))


@pytest.mark.parametrize("is_link", [False, True])
def test_a_directory_that_never_appears_is_waited_for_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_link: bool
) -> None:
    monkeypatch.setattr(loading, "_LATE_S", 0.2)
    store = tmp_path / "models"
    if is_link:
        store.symlink_to(tmp_path / "nowhere" / "models")
    with pytest.raises(ConfigurationError, match=r"--model-repository: there is no such directory"):
        server_module.run(options_of(store, exit_on_error=True))
    assert f"the model repository '{store}' is not there yet: waiting for it, 0 s at most" in caplog.messages


def test_a_signal_ends_the_wait_for_a_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_LATE_S", 3_600.0)

    async def main() -> None:
        server = Server(options_of(tmp_path / "models", exit_on_error=True))
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run)
                await trio.to_thread.run_sync(wait_until, lambda: "is not there yet" in caplog.text)
                server.stop()

    run(main)


def test_a_model_that_the_repository_lacks_is_said_before_anything_is_loaded(repository: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--load-models: no such model .*got 'n'.*has: m"):
        server_module.run(options_of(repository, load_models=("n",)))


def test_a_configuration_error_out_of_nested_nurseries_comes_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load_all(*arguments: Any) -> None:
        async with trio.open_nursery():
            raise ConfigurationError("cannot be used")

    monkeypatch.setattr(ModelManager, "load_all", load_all)
    with pytest.raises(ConfigurationError, match=r"^cannot be used$"):
        server_module.run(options_of(repository))


def test_another_error_out_of_nested_nurseries_is_logged_with_its_trace(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def load_all(*arguments: Any) -> None:
        async with trio.open_nursery():
            raise ZeroDivisionError

    monkeypatch.setattr(ModelManager, "load_all", load_all)
    assert server_module.run(options_of(repository)) == 1
    [record] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert record.getMessage() == "the server failed, and ends"
    assert "raise ZeroDivisionError" in caplog.text


def test_a_signal_while_models_load_ends_the_server_cleanly(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loading, go_on = threading.Event(), threading.Event()
    really_load = load_session

    def load_slowly(*arguments: Any, **more: Any) -> Any:
        loading.set()
        assert go_on.wait(120)
        return really_load(*arguments, **more)

    monkeypatch.setattr(loader_module, "load_session", load_slowly)
    codes = []

    async def main() -> None:
        server = Server(options_of(repository))
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    codes.append(await server.run())

                nursery.start_soon(serve)
                await trio.to_thread.run_sync(loading.wait)
                os.kill(os.getpid(), signal.SIGTERM)
                await server.shutdown.begun.wait()
                go_on.set()

    run(main)
    assert codes == [0]
    assert "READY" not in capfd.readouterr().out


def test_what_workers_are_given_is_what_the_options_say(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    class Seen(Worker):
        def __init__(self, name: str, limits: Any, **more: Any) -> None:
            seen.append((name, limits, more))
            super().__init__(name, limits, **more)

    class SeenService(GrpcService):
        def __init__(self, worker: Worker, methods: Any, *more: Any) -> None:
            compression, statuses, *_ = more  # and the text of the date, and what else is answered
            seen.append((worker.name, compression, statuses))
            super().__init__(worker, methods, *more)

    monkeypatch.setattr(workers_module, "Worker", Seen)
    monkeypatch.setattr(workers_module, "most_descriptor", lambda: 77)
    monkeypatch.setattr("toutates.server.starting.GrpcService", SeenService)
    options = options_of(
        repository, processing_cores=2, max_concurrent_connections=11, max_buffered_bytes=25, grpc_compression="gzip"
    )

    async def main() -> None:
        async with started(options) as running:
            running.server.stop()

    run(main)
    given = {"max_connections": 5, "buffer_bytes": 12, "most_fd": 77}
    assert seen == [
        part for name in ("worker-0", "worker-1") for part in ((name, options.limits, given), (name, "gzip", STATUSES))
    ]


# --- cores


def test_pinned_threads_run_where_the_plan_says_and_the_process_is_as_before_afterwards(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = allowed_cpus()
    first, last = min(allowed), max(allowed)
    # By hand, because roles may share a CPU here: a plan of the server's own takes three CPUs at least.
    plan = Placement(
        processing_cores=2,
        topology=read_topology(allowed),
        manager=(last,),
        executors=(first,),
        workers=(last, first),
    )
    monkeypatch.setattr(server_module, "plan_threads", lambda options: plan)
    server = Server(options_of(repository))
    running = Running(server)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(running.run)
                expected = {"worker-0": {last}, "worker-1": {first}, "executor-0": {first}}
                await trio.to_thread.run_sync(wait_until, lambda: expected.items() <= dict(cpus_of_threads()).items())
                assert os.sched_getaffinity(os.getpid()) == {last}  # of the main thread, whose id is the process's
                assert (await running.probe())[0]
                server.stop()

    run(main)
    assert running.code == 0
    assert allowed_cpus() == allowed


def test_pinning_with_fewer_cores_than_roles_is_refused_before_anything_starts(repository: Path) -> None:
    one = (min(allowed_cpus()),)
    with pytest.raises(ConfigurationError, match=rf"--cpu-pinning: .* at least 3 CPUs, .* may use 1 \({one[0]}\)"):
        Server(options_of(repository, cpu_pinning=one))


def test_the_plan_is_made_from_the_options(repository: Path) -> None:
    cpus = len(allowed_cpus())

    def placed(**more: Any) -> tuple[int, int]:
        placement = plan_threads(options_of(repository, **more))
        return placement.executor_cpus, placement.processing_cores

    assert placed() == (1, 1 if gil_enabled() else max(1, cpus - 1))
    assert placed(executor_cpus=cpus + 3) == (cpus + 3, 1)
    assert placed(processing_cores=cpus + 5) == (1, cpus + 5)


def test_threads_are_shown_beside_the_models(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with started(
            options_of(repository, processing_cores=2, ort_intra_threads=2, executor_threads=3)
        ) as running:
            running.server.stop()

    run(main)
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == "2 workers, 3 executors, 1 intra-op thread; threads are not pinned to cores"


def test_more_workers_than_cpus_are_served_with_a_warning(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = len(allowed_cpus()) + 1

    async def main() -> None:
        async with started(options_of(repository, processing_cores=workers)) as running:
            assert (await running.probe())[0]
            running.server.stop()

    run(main)
    assert f"{workers} workers on {workers - 1} CPUs" in caplog.text
    assert ("with the GIL spread the connections" in caplog.text) == gil_enabled()


def test_the_log_says_what_serves(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toutates")

    async def main() -> None:
        async with started(options_of(repository, server_id="mine", processing_cores=1)) as running:
            running.server.stop()

    run(main)
    text = f"mine: toutates {package_version()} on {describe_interpreter()}: serving gRPC on 127.0.0.1:"
    assert text in caplog.text
    assert "with 1 worker, ready" in caplog.text
