"""TLS as its users see it: tritonclient, ``toutates probe``, and an operator with new certificates."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives import serialization

from tests.certificates import EXPIRED, SERVER_NAME, STRANGER, Files, client_context, issue
from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.held import running_held
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import triton
from tests.e2e.wire import Client
from tests.waiting import wait_until

MODELS = ["--load-models", "dynamic,slow"]
LIVE = "/inference.GRPCInferenceService/ServerLive"
SECONDS = 120.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(repository: Path, files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with TLS that lets in every client."""
    flags = [*MODELS, *files.server_flags(), "--http-addr", "127.0.0.1:0"]
    with running(repository, tmp_path_factory.mktemp("secure"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


@pytest.fixture(scope="module")
def mutual(repository: Path, files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that asks clients for certificates."""
    with running(repository, tmp_path_factory.mktemp("mutual"), [*MODELS, *files.server_flags(mutual=True)]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@contextmanager
def client_of(process: ServerProcess, trust: Files | None, own: Files | None = None) -> Iterator[Any]:
    """tritonclient with TLS, on a connection of its own."""
    client = triton.InferenceServerClient(
        process.address,
        ssl=trust is not None,
        root_certificates=None if trust is None else str(trust.ca),
        private_key=None if own is None else str(own.key),
        certificate_chain=None if own is None else str(own.cert),
        channel_args=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)],
    )
    try:
        yield client
    finally:
        client.close()


def dynamic_input(values: npt.NDArray[np.float32]) -> list[Any]:
    tensor = triton.InferInput("INPUT", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    return [tensor]


def infer(client: Any, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The model "dynamic": the negatives."""
    result = client.infer("dynamic", dynamic_input(values), client_timeout=SECONDS)
    output: npt.NDArray[np.float32] = result.as_numpy("OUTPUT")
    return output


def rows(columns: int) -> npt.NDArray[np.float32]:
    return np.arange(columns, dtype=np.float32).reshape(1, columns)


@contextmanager
def tls_client(process: ServerProcess, context: ssl.SSLContext) -> Iterator[tuple[ssl.SSLSocket, Client]]:
    """A client of the h2 package with TLS of Python's."""
    with (
        socket.create_connection(("127.0.0.1", process.port), timeout=SECONDS) as sock,
        context.wrap_socket(sock, server_hostname=SERVER_NAME) as wrapped,
    ):
        yield wrapped, Client(wrapped)


def logged(process: ServerProcess, text: str, attempt: Callable[[], object]) -> None:
    """Wait for a line; of its kind the log has a few in ten seconds only, so that it may take some attempts."""

    def is_there() -> bool:
        attempt()
        return text in process.log

    wait_until(is_there, pause_s=0.2)


# --- what works


@pytest.mark.parametrize("columns", [4, 2_500_000])
def test_triton_client_infers_over_tls(secure: ServerProcess, files: Files, columns: int) -> None:
    with client_of(secure, files) as client:
        values = rows(columns)
        assert np.array_equal(infer(client, values), -values)


def test_triton_client_asks_for_health_and_metadata_over_tls(secure: ServerProcess, files: Files) -> None:
    with client_of(secure, files) as client:
        assert client.is_server_ready()
        assert client.get_server_metadata().name == "triton"


def test_triton_aio_client_infers_over_mutual_tls(mutual: ServerProcess, files: Files) -> None:
    import tritonclient.grpc.aio as triton_aio

    async def use() -> None:
        async with triton_aio.InferenceServerClient(
            mutual.address,
            ssl=True,
            root_certificates=str(files.ca),
            private_key=str(files.key),
            certificate_chain=str(files.cert),
        ) as client:
            for columns in (4, 2_500_000):
                result = await client.infer("dynamic", dynamic_input(rows(columns)))
                assert np.array_equal(result.as_numpy("OUTPUT"), -rows(columns))

    asyncio.run(use())


def test_many_calls_on_several_connections_at_once_get_their_own_answers(secure: ServerProcess, files: Files) -> None:
    failures: list[str] = []

    def use(seed: int) -> None:
        with client_of(secure, files) as client:
            for number in range(40):
                values = np.full((1 + number % 3, 1 + 997 * number), seed * 1_000 + number, np.float32)
                if not np.array_equal(infer(client, values), -values):
                    failures.append(f"{seed}, {number}")

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_of_tls_1_2_and_1_3_are_served(secure: ServerProcess, version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    with tls_client(secure, context) as (sock, client):
        assert sock.version() == version.name.replace("_", ".")
        assert sock.selected_alpn_protocol() == "h2"
        assert client.call(LIVE, b"").status == ("0", "")


def test_server_with_several_workers_speaks_tls_on_all_of_them(repository: Path, files: Files, tmp_path: Path) -> None:
    flags = [*MODELS, *files.server_flags(), "--processing-cores", "3"]
    with running(repository, tmp_path, flags) as process:
        for _ in range(12):
            with client_of(process, files) as client:
                assert np.array_equal(infer(client, rows(4)), -rows(4))
        assert process.stop() == 0


def test_server_that_stops_answers_what_is_under_way_over_tls(repository: Path, files: Files, tmp_path: Path) -> None:
    with (
        running_held(repository, tmp_path, [*MODELS, *files.server_flags()]) as (process, runs),
        client_of(process, files) as client,
    ):
        tensor = triton.InferInput("INPUT", [1, 1], "INT64")
        tensor.set_data_from_numpy(np.array([[3]], np.int64))
        answers: list[Any] = []
        done = threading.Event()

        def take(result: Any, error: Any) -> None:
            answers.append(error or result.as_numpy("OUTPUT").tolist())
            done.set()

        with runs.held():
            client.async_infer("slow", [tensor], take)
            runs.wait_begun(1)
            process.process.terminate()
            wait_until(lambda: "SIGTERM: " in process.log)
        assert done.wait(SECONDS)
        assert answers == [[[3]]]
        client.close()
        assert process.process.wait(120) == 0


# --- refusals


def refused(process: ServerProcess, trust: Files | None, own: Files | None = None) -> str:
    """What tritonclient says."""
    with client_of(process, trust, own) as client, pytest.raises(triton.InferenceServerException) as caught:
        client.is_server_live(client_timeout=SECONDS)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    return str(caught.value.message())


def lets_in(process: ServerProcess, trust: Files, own: Files) -> bool:
    with client_of(process, trust, own) as client:
        try:
            return bool(client.is_server_live(client_timeout=SECONDS))
        except triton.InferenceServerException:
            return False


def assert_still_serving(process: ServerProcess, files: Files, own: Files | None = None) -> None:
    with client_of(process, files, own) as client:
        assert client.is_server_live()


def test_plaintext_client_is_refused_at_once(secure: ServerProcess, files: Files) -> None:
    refused(secure, None)
    logged(secure, "plaintext HTTP/2 on a TLS port", lambda: refused(secure, None))
    assert_still_serving(secure, files)


def test_client_that_does_not_trust_the_server_says_so(secure: ServerProcess, files: Files, tmp_path: Path) -> None:
    stranger = issue(tmp_path, authority=STRANGER)
    assert "CERTIFICATE_VERIFY_FAILED" in refused(secure, stranger)
    logged(secure, "TLS handshake failed: the client left without a word", lambda: refused(secure, stranger))
    assert_still_serving(secure, files)


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (lambda folder: None, "peer did not return a certificate"),
        (lambda folder: issue(folder, authority=STRANGER), "unable to get local issuer certificate"),
        (lambda folder: issue(folder, expires=EXPIRED), "certificate has expired"),
    ],
    ids=["no certificate", "another authority's", "an expired one"],
)
def test_mutual_tls_refuses_a_client_with(
    mutual: ServerProcess, files: Files, tmp_path: Path, own: Callable[[Path], Files | None], text: str
) -> None:
    certificate = own(tmp_path)
    refused(mutual, files, certificate)
    logged(mutual, text, lambda: refused(mutual, files, certificate))
    assert_still_serving(mutual, files, files)


def test_tls_client_of_a_plaintext_port_sees_a_tls_error(server: ServerProcess, files: Files) -> None:
    assert "HANDSHAKE_FAILURE" in refused(server, files)
    logged(server, "TLS handshake on a plaintext port", lambda: refused(server, files))
    with client_of(server, None) as client:
        assert client.is_server_live()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_1_is_refused(secure: ServerProcess) -> None:
    context = client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

    def attempt() -> None:
        with pytest.raises(ssl.SSLError, match="protocol version"), tls_client(secure, context):
            pass

    attempt()
    logged(secure, "TLS handshake failed: unsupported protocol", attempt)


def test_client_of_other_protocols_is_refused(secure: ServerProcess) -> None:
    with (
        pytest.raises(ssl.SSLError, match="no application protocol"),
        tls_client(secure, client_context(alpn=("h3",))),
    ):
        pass


@pytest.mark.parametrize("alpn", [("http/1.1",), ()])
def test_http_1_is_spoken_over_tls(secure: ServerProcess, alpn: tuple[str, ...]) -> None:
    for port in (secure.port, secure.rest_port):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain,
            client_context(alpn=alpn).wrap_socket(plain, server_hostname=SERVER_NAME) as sock,
        ):
            assert sock.selected_alpn_protocol() == (alpn[0] if alpn else None)
            sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(65_536), b""))
        assert answer.endswith(b'{"live":true}')


def test_client_without_alpn_is_served(secure: ServerProcess) -> None:
    with tls_client(secure, client_context(alpn=())) as (sock, client):
        assert sock.selected_alpn_protocol() is None
        assert client.call(LIVE, b"").status == ("0", "")


def test_plaintext_http_1_gets_a_text(secure: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", secure.port), timeout=SECONDS) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"speaks TLS" in answer


# --- gRPC alone


def test_tritons_flags_encrypt_grpc_alone_and_grpc_is_refused_in_clear(repository: Path, tmp_path: Path) -> None:
    files = issue(tmp_path)
    triton_flags = ["--grpc-use-ssl=true", f"--grpc-server-cert={files.cert}", f"--grpc-server-key={files.key}"]
    ports = [f"--{name}=127.0.0.1:0" for name in ("http-addr", "metrics-addr", "torchserve-management-addr")]
    with running(
        repository, tmp_path, [*MODELS, *triton_flags, *ports, "--torchserve-api", "--processes=2"]
    ) as process:
        assert "--grpc-use-ssl is for gRPC alone" in process.log
        with client_of(process, files) as client:
            assert np.array_equal(infer(client, rows(4)), -rows(4))
        refused(process, None)
        for port, path in (
            (process.rest_port, "/v2/health/live"),
            (process.rest_port, "/ping"),
            (process.management_port, "/models"),
            (process.http_port, "/metrics"),
        ):
            assert get(port, path) == 200
        for port in (process.rest_port, process.management_port):
            plain = ServerProcess(process.process, port, process.log_path)
            with client_of(plain, None) as client, pytest.raises(triton.InferenceServerException) as caught:
                client.is_server_live(client_timeout=SECONDS)
            assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
            assert "gRPC is served with TLS alone, on the port of --grpc-addr" in str(caught.value.message())
            assert "HANDSHAKE_FAILURE" in refused(plain, files)
        serial = serial_number(process)
        put(issue(tmp_path, "new"), files)
        reload_tls(process)
        new_serial_number(process, {serial})
        assert get(process.rest_port, "/v2/health/live") == 200
        assert process.stop() == 0
        assert "Traceback" not in process.log


def get(port: int, path: str) -> int:
    """The status of an answer in clear."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS) as answer:
        status: int = answer.status
    return status


# --- new certificates


def put(new: Files, place: Files) -> None:
    """Put files in the place of others, as those who renew certificates do."""
    for source, target in ((new.cert, place.cert), (new.key, place.key)):
        copy = target.with_suffix(".new")
        copy.write_bytes(source.read_bytes())
        copy.replace(target)


def serial_number(process: ServerProcess) -> object:
    """Of the certificate that new connections get."""
    with tls_client(process, client_context()) as (sock, _):
        return (sock.getpeercert() or {})["serialNumber"]


def new_serial_number(process: ServerProcess, known: Collection[object]) -> object:
    """Wait for a certificate that is none of these. Workers take one, one after the other, so that it is asked once."""
    found: list[object] = []

    def is_new() -> bool:
        found.append(serial_number(process))
        return found[-1] not in known

    wait_until(is_new)
    return found[-1]


def reload_tls(process: ServerProcess) -> None:
    """SIGHUP, and wait until it has been heeded."""
    count = process.log.count("TLS with the certificate") + process.log.count("stays in use")
    process.process.send_signal(signal.SIGHUP)
    wait_until(lambda: process.log.count("TLS with the certificate") + process.log.count("stays in use") > count)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_new_certificates_are_loaded_under_traffic_without_a_failed_request(
    repository: Path, tmp_path: Path, workers: str
) -> None:
    files = issue(tmp_path)
    errors: list[Exception] = []
    counts = [0, 0]
    over = threading.Event()

    def use(one_connection: bool) -> None:
        try:
            while not over.is_set():
                with client_of(process, files) as client:
                    while not over.is_set():
                        assert np.array_equal(infer(client, rows(100)), -rows(100))
                        counts[one_connection] += 1
                        if not one_connection:
                            break
        except Exception as error:
            errors.append(error)

    flags = [*MODELS, *files.server_flags(), "--processing-cores", workers]
    with running(repository, tmp_path, flags) as process:
        threads = [threading.Thread(target=use, args=(kind,)) for kind in (True, False, True, False)]
        for thread in threads:
            thread.start()
        serials = {serial_number(process)}
        try:
            for number in range(5):
                before = list(counts)
                put(issue(tmp_path, f"new-{number}"), files)
                reload_tls(process)
                serials.add(new_serial_number(process, serials))
                wait_until(
                    lambda before=before: (  # type: ignore[misc]
                        errors or all(after > first for after, first in zip(counts, before, strict=True))
                    )
                )
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert len(serials) == 6
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_what_cannot_be_loaded_leaves_the_old_certificate_in_use(repository: Path, tmp_path: Path) -> None:
    files = issue(tmp_path)
    with running(repository, tmp_path, [*MODELS, *files.server_flags()]) as process:
        serial = serial_number(process)
        files.cert.write_bytes(issue(tmp_path, "new").cert.read_bytes())
        reload_tls(process)
        assert (
            f"--tls-key: is not the key of the certificate {files.cert} (got '{files.key}'); name the key"
            in process.log
        )
        assert "until then the certificate loaded before stays in use" in process.log
        assert serial_number(process) == serial
        files.cert.unlink()
        reload_tls(process)
        assert f"--tls-cert: there is no such file (got '{files.cert}')" in process.log
        assert serial_number(process) == serial
        put(issue(tmp_path, "third"), files)
        reload_tls(process)
        wait_until(lambda: serial_number(process) != serial)
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.mark.parametrize("more", [[], ["--processes", "2", "--metrics-tls", "on"]])
def test_files_that_are_swapped_as_kubernetes_swaps_them_are_used_without_a_signal(
    repository: Path, tmp_path: Path, more: list[str]
) -> None:
    """The key comes after its certificate, and both begin with a byte order mark."""
    secret = tmp_path / "secret"
    for folder in (secret, secret / "..1", secret / "..2"):
        folder.mkdir()
    first, second = issue(secret / "..1"), issue(secret / "..2")
    (secret / "..data").symlink_to("..1")
    for path in (first.cert, first.key):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
        (secret / path.name).symlink_to(f"..data/{path.name}")
    served = Files(secret / first.cert.name, secret / first.key.name, first.ca)
    with running(repository, tmp_path, [*MODELS, *served.server_flags(), *more]) as process:
        serial = serial_number(process)
        loaded = process.log.count("TLS with the certificate")
        copies = 3 if more else 1  # of both processes and their parent
        key = second.key.read_bytes()
        second.key.write_bytes(b"")
        (secret / "..tmp").symlink_to("..2")
        os.rename(secret / "..tmp", secret / "..data")
        wait_until(lambda: "holds no private key" in process.log)
        assert serial_number(process) == serial
        second.key.write_bytes(key)
        new_serial_number(process, [serial])
        wait_until(lambda: process.log.count("TLS with the certificate") == loaded + copies)
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_a_reload_takes_a_new_authority_for_clients(repository: Path, tmp_path: Path) -> None:
    files = issue(tmp_path)
    stranger = issue(tmp_path, "stranger", authority=STRANGER)
    with running(repository, tmp_path, [*MODELS, *files.server_flags(mutual=True)]) as process:
        assert_still_serving(process, files, files)
        refused(process, files, stranger)
        files.ca.write_bytes(stranger.ca.read_bytes())
        reload_tls(process)
        trusted = Files(files.cert, files.key, issue(tmp_path, "authority").ca)
        wait_until(lambda: lets_in(process, trusted, stranger))
        wait_until(lambda: not lets_in(process, trusted, trusted))
        assert process.stop() == 0


def test_sighup_without_tls_is_logged_and_ignored(server: ServerProcess) -> None:
    count = server.log.count("SIGHUP")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: server.log.count("SIGHUP: there is nothing to read again") > count)
    with client_of(server, None) as client:
        assert client.is_server_live()


def test_an_expired_certificate_is_a_warning(repository: Path, tmp_path: Path) -> None:
    files = issue(tmp_path, expires=EXPIRED)
    with running(repository, tmp_path, [*MODELS, *files.server_flags()]) as process:
        assert (
            f"WARNING server: clients will refuse the certificate {files.cert}: certificate has expired" in process.log
        )
        assert "CERTIFICATE_VERIFY_FAILED" in refused(process, files)
        assert process.stop() == 0


# --- mistakes


def encrypted(path: Path, form: serialization.PrivateFormat) -> None:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))


def truncated(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:20] + b"\n" + lines[-1])


def without_rights(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.chmod(0)


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nothing(files: Files) -> None:
    pass


MISTAKES: list[tuple[str, Callable[[Files], object], Sequence[str], Sequence[str]]] = [
    ("no key", nothing, ["--tls-cert", "CERT"], ["--tls-cert: needs --tls-key too", "add --tls-key FILE"]),
    ("no certificate", nothing, ["--tls-key", "KEY"], ["--tls-key: needs --tls-cert too", "add --tls-cert FILE"]),
    (
        "an authority alone",
        nothing,
        ["--tls-client-ca", "CA"],
        ["--tls-client-ca: needs --tls-cert and --tls-key too", "add --tls-cert FILE"],
    ),
    (
        "no such file",
        lambda files: files.cert.unlink(),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-cert: there is no such file (got 'CERT')", "correct the path"],
    ),
    (
        "a folder",
        lambda files: into_folder(files.key),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-key: is not a file (got 'KEY')"],
    ),
    (
        "unreadable",
        lambda files: without_rights(files.key),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-key: cannot be read: Permission denied (got 'KEY')"],
    ),
    (
        "swapped",
        nothing,
        ["--tls-cert", "KEY", "--tls-key", "CERT"],
        ["--tls-cert: holds no certificate in PEM form (got 'KEY')", "name a PEM file"],
    ),
    (
        "no key in its file",
        nothing,
        ["--tls-cert", "CERT", "--tls-key", "CERT"],
        ["--tls-key: holds no private key in PEM form (got 'CERT')", "name the key of CERT"],
    ),
    (
        "a damaged certificate",
        lambda files: truncated(files.cert),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-cert: holds a certificate that cannot be read", "(got 'CERT')"],
    ),
    (
        "a damaged key",
        lambda files: truncated(files.key),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-cert, --tls-key: OpenSSL refuses the certificate or its key", "KEY"],
    ),
    (
        "another key",
        lambda files: put(Files(files.cert, issue(files.cert.parent, "other").key, files.ca), files),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-key: is not the key of the certificate CERT (got 'KEY')", "name the key that"],
    ),
    (
        "an encrypted key",
        lambda files: encrypted(files.key, serialization.PrivateFormat.PKCS8),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-key: the key is encrypted", "(got 'KEY')", "decrypt it with 'openssl pkey -in KEY"],
    ),
    (
        "an encrypted key of the old form",
        lambda files: encrypted(files.key, serialization.PrivateFormat.TraditionalOpenSSL),
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--tls-key: the key is encrypted"],
    ),
    (
        "no authority in its file",
        nothing,
        ["--tls-cert", "CERT", "--tls-key", "KEY", "--tls-client-ca", "KEY"],
        ["--tls-client-ca: holds no certificate in PEM form (got 'KEY')", "the authorities to trust"],
    ),
]


@pytest.mark.parametrize(
    ("damage", "arguments", "words"), [mistake[1:] for mistake in MISTAKES], ids=[mistake[0] for mistake in MISTAKES]
)
def test_a_mistake_is_named_before_anything_is_loaded(
    broken_repository: Path,
    tmp_path: Path,
    damage: Callable[[Files], object],
    arguments: Sequence[str],
    words: Sequence[str],
) -> None:
    files = issue(tmp_path)
    damage(files)

    def with_paths(text: str) -> str:
        return text.replace("CERT", str(files.cert)).replace("KEY", str(files.key)).replace("CA", str(files.ca))

    paths = [with_paths(word) if not word.startswith("--") else word for word in arguments]
    ended = run("--model-repository", str(broken_repository), "--grpc-addr", "127.0.0.1:0", *paths)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "loaded" not in ended.stderr
    for word in words:
        assert with_paths(word) in ended.stderr


# --- probe


def probe(process: ServerProcess, *arguments: str) -> tuple[int, str]:
    ended = run("probe", process.address, "--timeout", "60", *arguments)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout + ended.stderr


def test_probe_speaks_tls(secure: ServerProcess, files: Files) -> None:
    assert probe(secure, "--tls-ca", str(files.ca)) == (0, f"{secure.address}: SERVING\n")


def test_probe_trusts_the_servers_very_certificate_and_takes_its_name(secure: ServerProcess, files: Files) -> None:
    assert probe(secure, "--tls-ca", str(files.cert), "--tls-server-name", SERVER_NAME)[0] == 0
    code, text = probe(secure, "--tls-ca", str(files.cert), "--tls-server-name", "other.test")
    assert code == 1
    assert "Hostname mismatch" in text


def test_probe_of_a_name_that_cannot_be_one_says_so(secure: ServerProcess) -> None:
    code, text = probe(secure, "--tls", "--tls-server-name", "a..b")
    assert code == 1
    assert "'a..b' cannot be the name of a host" in text


def test_probe_shows_a_certificate_where_it_has_to(mutual: ServerProcess, files: Files) -> None:
    own = ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    assert probe(mutual, "--tls-ca", str(files.ca), *own)[0] == 0
    code, text = probe(mutual, "--tls-ca", str(files.ca))
    assert code == 1
    assert "certificate required" in text


def test_probe_does_not_trust_just_anybody(secure: ServerProcess) -> None:
    code, text = probe(secure, "--tls")
    assert code == 1
    assert "TLS failed: the peer's certificate is refused: " in text


def test_probe_tells_that_the_other_side_speaks_tls_or_does_not(secure: ServerProcess, server: ServerProcess) -> None:
    code, text = probe(secure)
    assert code == 1
    assert "the server closed the connection at once; if it speaks TLS, add --tls" in text
    code, text = probe(server, "--tls")
    assert code == 1
    assert "alert handshake failure" in text


@pytest.mark.parametrize(
    "arguments", [["--tls-cert", "CERT"], ["--tls-key", "KEY"], ["--tls-ca", "/nowhere"], ["--tls-ca", "KEY"]]
)
def test_probe_with_a_tls_mistake_is_2(files: Files, arguments: Sequence[str]) -> None:
    paths = {"CERT": str(files.cert), "KEY": str(files.key)}
    ended = run("probe", "127.0.0.1:1", *[paths.get(word, word) for word in arguments])
    assert ended.returncode == 2
    assert arguments[0] in ended.stderr
    assert "Traceback" not in ended.stderr
