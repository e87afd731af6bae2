"""The server as a whole, in this process: how it starts, how it stops, and what ends it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import PingAckReceived

from tests.graphs import DOUBLE
from tests.kinds import MadeKind
from tests.server.started import Running, options_of, started
from tests.waiting import wait_until
from toutates.command.probe import probe
from toutates.server import server as server_module
from toutates.server.running import run_logged
from toutates.server.server import Server
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.interpreter import describe_interpreter
from toutates.system.version import package_version


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(DOUBLE)
    return tmp_path / "repository"


def test_the_server_starts_answers_and_stops(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with started(options_of(repository)) as running:
            assert await running.probe() == (True, f"{running.address}: SERVING")
            running.server.stop()
        assert running.code == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((running.address.host, running.address.port))

    trio.run(main)
    assert "m     1       READY x FP32[-1,4] y FP32[-1,4] 64" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_server(repository: Path, number: int) -> None:
    async def main() -> None:
        async with started(options_of(repository)) as running:
            os.kill(os.getpid(), number)
        assert running.code == 0

    trio.run(main)


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

    trio.run(main)


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

    trio.run(main)


def test_cancelling_the_server_ends_its_threads(repository: Path) -> None:
    async def main() -> None:
        with trio.fail_after(120):
            running = Running(Server(options_of(repository, processing_cores=2)))
            async with trio.open_nursery() as nursery:
                await nursery.start(running.run)
                async with await open_call(running):
                    nursery.cancel_scope.cancel()
        assert running.code is None

    trio.run(main)


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

    trio.run(main)


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

    trio.run(main)
    assert "broken 1       UNAVAILABLE Internal: onnxruntime cannot load 'model.onnx'" in capfd.readouterr().out


def test_only_the_models_asked_for_are_loaded(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (repository / "other" / "1").mkdir(parents=True)

    async def main() -> None:
        async with started(options_of(repository, load_models=("m",))) as running:
            assert (await running.probe())[0]
            running.server.stop()

    trio.run(main)
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

    trio.run(main)
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

    trio.run(main)
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

    trio.run(main)


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

    trio.run(main)


def test_a_repository_that_cannot_be_used_is_refused_where_errors_end_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--model-repository: there is no such directory"):
        server_module.run(options_of(tmp_path / "missing" / "models", exit_on_error=True))


@pytest.mark.parametrize("is_link", [False, True])
def test_a_directory_that_never_appears_is_waited_for_and_then_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_link: bool
) -> None:
    store = tmp_path / "models"
    if is_link:
        store.symlink_to(tmp_path / "nowhere" / "models")
    with pytest.raises(ConfigurationError, match=r"--model-repository: there is no such directory"):
        server_module.run(options_of(store, exit_on_error=True, wait_for_repository_s=0.2))
    assert f"the model repository '{store}' is not there yet: waiting for it, 0 s at most" in caplog.messages


def test_a_signal_ends_the_wait_for_a_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = Server(options_of(tmp_path / "models", exit_on_error=True, wait_for_repository_s=3_600.0))
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run)
                await trio.to_thread.run_sync(wait_until, lambda: "is not there yet" in caplog.text)
                server.stop()

    trio.run(main)


def test_a_model_that_the_repository_lacks_is_said_before_anything_is_loaded(repository: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--load-models: no such model .*got 'n'.*has: m"):
        server_module.run(options_of(repository, load_models=("n",)))


async def fail_nested(error: Exception) -> int:
    async with trio.open_nursery(), trio.open_nursery():
        raise error


def test_a_configuration_error_out_of_nested_nurseries_comes_alone() -> None:
    with pytest.raises(ConfigurationError, match=r"^cannot be used$"):
        run_logged(lambda: partial(fail_nested, ConfigurationError("cannot be used")))


def test_another_error_out_of_nested_nurseries_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    assert run_logged(lambda: partial(fail_nested, ZeroDivisionError())) == 1
    [record] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert record.getMessage() == "the server failed, and ends"
    assert "raise error" in caplog.text


def test_a_signal_while_models_load_ends_the_server_cleanly(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load_slowly(model: str, number: int, folder: Path) -> Any:
        loading.set()
        assert go_on.wait(120)
        raise ModelLoadError("nobody waits for it")

    codes = []

    async def main() -> None:
        server = Server(options_of(repository), kinds=[MadeKind("model.onnx", load_slowly, "slow")])
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    codes.append(await server.run())

                nursery.start_soon(serve)
                await trio.to_thread.run_sync(loading.wait)
                os.kill(os.getpid(), signal.SIGTERM)
                await server.shutdown.begun.wait()
                go_on.set()

    trio.run(main)
    assert codes == [0]
    assert "READY" not in capfd.readouterr().out


def test_each_worker_has_its_part_of_what_the_options_allow(repository: Path) -> None:
    options = options_of(repository, processing_cores=2, max_concurrent_connections=5, max_buffered_bytes=2_000_001)

    async def main() -> None:
        async with started(options) as running:
            workers = running.server.workers.all
            assert [(worker.limits, worker.budget.limit) for worker in workers] == [(options.limits, 1_000_000)] * 2
            streams = [await trio.open_tcp_stream(running.address.host, running.address.port) for _ in range(60)]
            await trio.to_thread.run_sync(wait_until, lambda: [worker.connections for worker in workers] == [2, 2])
            for stream in streams:
                await stream.aclose()
            running.server.stop()

    trio.run(main)


def test_the_log_says_what_serves(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toutates")

    async def main() -> None:
        async with started(options_of(repository, server_id="mine", processing_cores=1)) as running:
            running.server.stop()

    trio.run(main)
    text = f"mine: toutates {package_version()} on {describe_interpreter()}: serving gRPC on 127.0.0.1:"
    assert text in caplog.text
    assert "with 1 worker, ready" in caplog.text
