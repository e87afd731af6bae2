"""TLS with bytes alone: the engine on one side, OpenSSL's client on the other."""

from __future__ import annotations

import re
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trustme

from fuzz.attacks.key_updates import KeyUpdates
from tests.certificates import EXPIRED, STRANGER, Files, client_context, issue
from tests.h2grpc.frames import OPENING
from tests.net.test_client_hello import in_records
from tests.net.tls_support import TlsPair, server_context
from toutates.h2grpc import Limits
from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.net import GrpcService, Worker
from toutates.net.tls import TlsEngine
from toutates.net.tls_transport import TlsTransport

LARGE = bytes(range(256)) * 4_096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("certificates"), mutual=True)


def client_of(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    return context


def established(server: ssl.SSLContext, client: ssl.SSLContext | None = None) -> TlsPair:
    pair = TlsPair(server, client)
    pair.shake_hands()
    return pair


# --- what works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece_bytes", [0, 1, 7])
def test_server_and_client_exchange_data_however_the_bytes_are_cut(
    server: ssl.SSLContext, version: ssl.TLSVersion, piece_bytes: int
) -> None:
    pair = TlsPair(server, client_of(version), piece_bytes=piece_bytes)
    pair.shake_hands()
    assert pair.engine.version == version.name.replace("_", ".")
    assert pair.client.selected_alpn_protocol() == "h2"
    assert pair.client.compression() is None
    cipher, _, _ = pair.client.cipher() or ("", "", 0)
    assert "GCM" in cipher or "CHACHA20" in cipher
    for plaintext in (b"a", bytes(16_384), bytes(16_385), b"b" * 50_000):
        assert pair.send(plaintext) == plaintext
        assert pair.answer(plaintext) == plaintext


def test_data_that_comes_with_the_end_of_the_handshake_is_not_lost(server: ssl.SSLContext) -> None:
    pair = TlsPair(server)
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.do_handshake()
    pair.carry(pair.upstream())
    pair.client.do_handshake()
    pair.client.write(b"early bird")
    assert pair.carry(pair.upstream()) == b"early bird"


def test_a_mebibyte_in_one_read_is_one_piece_of_plaintext(server: ssl.SSLContext) -> None:
    pair = established(server)
    assert pair.send(LARGE) == LARGE
    assert pair.answer(LARGE) == LARGE


@pytest.mark.parametrize("key_type", list(trustme.KeyType))
def test_server_uses_ecdsa_and_rsa_certificates(tmp_path: Path, key_type: trustme.KeyType) -> None:
    pair = established(server_context(tmp_path, files=issue(tmp_path, key_type=key_type)))
    assert pair.send(b"hello") == b"hello"


def test_server_sends_no_tickets_to_clients_of_tls_1_3(server: ssl.SSLContext) -> None:
    pair = established(server, client_of(ssl.TLSVersion.TLSv1_3))
    pair.answer(b"x")
    assert pair.client.session is None or not pair.client.session.has_ticket


def test_server_lets_in_a_client_that_offers_no_protocols(server: ssl.SSLContext) -> None:
    pair = established(server, client_context(alpn=()))
    assert pair.client.selected_alpn_protocol() is None
    assert pair.send(b"hello") == b"hello"


def test_server_chooses_h2_among_others(server: ssl.SSLContext) -> None:
    pair = established(server, client_context(alpn=("grpc-exp", "http/1.1", "h2")))
    assert pair.client.selected_alpn_protocol() == "h2"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_mutual_tls_lets_in_a_client_with_a_certificate(
    mutual: ssl.SSLContext, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    client = client_context(issue(tmp_path))
    client.minimum_version = client.maximum_version = version
    assert established(mutual, client).send(b"hello") == b"hello"


# --- the end ---------------------------------------------------------------------------------------------------------


def test_data_before_the_peers_close_notify_is_delivered(server: ssl.SSLContext) -> None:
    pair = established(server)
    pair.client.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    assert pair.carry(pair.upstream()) == b"last words"
    assert pair.engine.peer_closed
    assert pair.answer(b"and ours") == b"and ours"  # TLS 1.3 lets one side end before the other
    assert pair.engine.receive(b"whatever else it sends") == b""


def test_close_tells_the_peer_and_only_once(server: ssl.SSLContext) -> None:
    pair = established(server)
    pair.engine.encrypt(b"last words")
    pair.engine.close()
    octets = pair.engine.take_output()
    pair.engine.close()
    assert not pair.engine.output_bytes
    pair.to_client.write(octets)
    assert pair.client.read(100) == b"last words"
    assert pair.client.read(100) == b""  # close_notify; its absence would be an error
    pair.client.write(b"too late")
    assert pair.engine.receive(pair.upstream()) == b""


def test_close_during_the_handshake_sends_nothing(server: ssl.SSLContext) -> None:
    engine = TlsEngine(server, 100)
    engine.close()
    assert engine.take_output() == b""
    assert engine.receive(b"GET / HTTP/1.1\r\n") == b""


def test_a_changed_record_ends_the_connection_with_an_alert(server: ssl.SSLContext) -> None:
    pair = established(server)
    pair.client.write(b"hello")
    octets = bytearray(pair.upstream())
    octets[-1] ^= 1
    with pytest.raises(ConnectionFault, match=r"^TLS failed: decryption failed or bad record mac$"):
        pair.carry(bytes(octets))
    with pytest.raises(ssl.SSLError, match=r"(?i)bad record mac"):
        pair.client.read(1)


# --- refusals, as both sides see them --------------------------------------------------------------------------------


def refused(pair: TlsPair) -> tuple[str, str]:
    """What the engine says of a handshake, and what the client's OpenSSL says."""
    with pytest.raises(ConnectionFault) as fault:
        pair.shake_hands()
    assert pair.engine.over
    with pytest.raises(ssl.SSLError) as seen:
        pair.end_of_handshake()
    return str(fault.value), str(seen.value)


def test_a_client_that_offers_other_protocols_only_is_refused(server: ssl.SSLContext) -> None:
    pair = TlsPair(server, client_context(alpn=("http/1.0", "h3")), piece_bytes=1)
    text, reason = refused(pair)
    assert text == "TLS handshake failed: the client offers neither h2 nor http/1.1 (ALPN)"
    assert "tlsv1 alert no application protocol" in reason


def test_a_client_that_hides_its_protocols_in_many_records_is_refused(server: ssl.SSLContext) -> None:
    pair = TlsPair(server, client_context(alpn=("h3",)))
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.do_handshake()
    with pytest.raises(ConnectionFault, match="offers neither h2 nor"):
        pair.carry(in_records(pair.upstream(), 50))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_a_client_of_an_old_version_is_refused(server: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    client = client_context()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = version
    text, reason = refused(TlsPair(server, client))
    assert text == "TLS handshake failed: unsupported protocol"
    assert "tlsv1 alert protocol version" in reason


@pytest.mark.parametrize("ciphers", ["ECDHE+AES+SHA256:!AESGCM", "AES128-GCM-SHA256"])
def test_a_client_without_forward_secrecy_or_authenticated_encryption_is_refused(
    server: ssl.SSLContext, ciphers: str
) -> None:
    client = client_of(ssl.TLSVersion.TLSv1_2)
    client.set_ciphers(ciphers)
    text, reason = refused(TlsPair(server, client))
    assert text == "TLS handshake failed: no shared cipher"
    assert "sslv3 alert handshake failure" in reason


def no_certificate(folder: Path) -> Files | None:
    return None


def stranger(folder: Path) -> Files:
    return issue(folder, authority=STRANGER)


def expired(folder: Path) -> Files:
    return issue(folder, expires=EXPIRED)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("certificate", "text", "reason"),
    [
        (
            no_certificate,
            "peer did not return a certificate",
            "tlsv13 alert certificate required|sslv3 alert handshake failure",
        ),
        (
            stranger,
            "the peer's certificate is refused: unable to get local issuer certificate",
            "tlsv1 alert unknown ca",
        ),
        (
            expired,
            "the peer's certificate is refused: certificate has expired",
            "sslv3 alert certificate expired",
        ),
    ],
)
def test_mutual_tls_refuses(
    mutual: ssl.SSLContext,
    tmp_path: Path,
    version: ssl.TLSVersion,
    certificate: Callable[[Path], Files | None],
    text: str,
    reason: str,
) -> None:
    client = client_context(certificate(tmp_path))
    client.minimum_version = client.maximum_version = version
    said, seen = refused(TlsPair(mutual, client))
    assert said == f"TLS handshake failed: {text}"
    assert re.search(reason, seen)


def test_a_client_that_does_not_trust_the_server_is_named(server: ssl.SSLContext) -> None:
    pair = TlsPair(server, ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        pair.shake_hands()
    with pytest.raises(ConnectionFault, match=r"^TLS handshake failed: tlsv1 alert unknown ca$"):
        pair.carry(pair.upstream())


def test_a_handshake_of_garbage_is_refused(server: ssl.SSLContext) -> None:
    engine = TlsEngine(server, 100)
    with pytest.raises(ConnectionFault, match=r"^TLS handshake failed: ") as fault:
        engine.receive(b"\x16\x03\x01\0\5\1\0\0\1\0")
    assert fault.value.code is ErrorCodes.PROTOCOL_ERROR
    assert engine.take_output()[:1] == b"\x15"


# --- clients that speak no TLS ---------------------------------------------------------------------------------------


def plaintext(server: ssl.SSLContext, octets: bytes, piece_bytes: int) -> tuple[ConnectionFault, bytes]:
    """How the engine refuses bytes that are no TLS, and what it answers."""
    engine = TlsEngine(server, 50)

    def receive() -> None:
        for at in range(0, len(octets), piece_bytes):
            assert engine.receive(octets[at : at + piece_bytes]) == b""

    with pytest.raises(ConnectionFault) as fault:
        receive()
    answer = engine.take_output()
    assert engine.receive(b"and more") == b""
    assert not engine.output_bytes
    return fault.value, answer


@pytest.mark.parametrize("piece_bytes", [1, 1_000])
def test_plaintext_http_1_is_answered_with_a_text(server: ssl.SSLContext, piece_bytes: int) -> None:
    fault, answer = plaintext(server, b"POST /path HTTP/1.1\r\nhost: x\r\n\r\n", piece_bytes)
    assert (str(fault), fault.code) == ("plaintext HTTP/1 on a TLS port", ErrorCodes.HTTP_1_1_REQUIRED)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-length: %d\r\n" % len(body) in head
    assert b"speaks TLS" in body


@pytest.mark.parametrize("piece_bytes", [1, 1_000])
def test_plaintext_http_2_is_refused_without_an_answer(server: ssl.SSLContext, piece_bytes: int) -> None:
    fault, answer = plaintext(server, OPENING[:24], piece_bytes)
    assert (str(fault), fault.code) == ("plaintext HTTP/2 on a TLS port", ErrorCodes.INADEQUATE_SECURITY)
    assert answer == b""


@pytest.mark.parametrize("octets", [b"\0", b"SSH-2.0-x", b"PRI * HTTP/2.0\r\n\r\nXX", b"GET /" + b"a" * 100, bytes(99)])
@pytest.mark.parametrize("piece_bytes", [1, 1_000])
def test_garbage_is_refused_without_an_answer(server: ssl.SSLContext, octets: bytes, piece_bytes: int) -> None:
    fault, answer = plaintext(server, octets, piece_bytes)
    assert str(fault) == "neither TLS nor HTTP on a TLS port"
    assert answer == b""


# --- records without data --------------------------------------------------------------------------------------------


def changing_keys(server: ssl.SSLContext, folder: Path) -> tuple[TlsPair, KeyUpdates]:
    client = client_context()
    client.keylog_filename = str(folder / "keys")
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    pair = TlsPair(server, client)
    pair.shake_hands()
    assert pair.client.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    return pair, KeyUpdates((folder / "keys").read_text())


@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.parametrize(("padding", "between"), [(0, ()), (0, (b"x",)), (9_000, (b"x",)), (0, (b"x", bytes(10_000)))])
@pytest.mark.parametrize("way", ["each", "together", "cut anywhere", "into views"])
def test_a_client_that_changes_keys_without_end_is_cut_off(
    server: ssl.SSLContext, tmp_path: Path, answer: bool, padding: int, between: tuple[bytes, ...], way: str
) -> None:
    pair, updates = changing_keys(server, tmp_path)
    records = []
    for _ in range(100):
        records.append(updates.change(answer=answer, padding=padding))
        records += [updates.data(data) for data in between]
    octets = b"".join(records)
    reads = records if way == "each" else [octets]
    if way == "cut anywhere":
        reads = [octets[at : at + 4_001] for at in range(0, len(octets), 4_001)]
    output = 0

    def change_keys() -> None:
        nonlocal output
        for read in reads:
            if way == "into views":
                pair.engine.receive_into(read, [memoryview(bytearray(1_000))])
            else:
                pair.engine.receive(read)
            output += pair.engine.output_bytes
            pair.engine.take_output()

    with pytest.raises(ConnectionFault) as fault:
        change_keys()
    assert (str(fault.value), fault.value.code) == ("TLS failed: records without data", ErrorCodes.ENHANCE_YOUR_CALM)
    assert fault.value.limit == "empty_tls_records"
    assert output + pair.engine.output_bytes <= 64 * 27  # what it has cost us


@pytest.mark.parametrize("size", [1, 7, 1_000, 1_000_000])
def test_a_client_that_changes_keys_now_and_then_goes_on(server: ssl.SSLContext, tmp_path: Path, size: int) -> None:
    pair, updates = changing_keys(server, tmp_path)
    octets = b"".join(
        updates.data(b"x" * (number % 5 + 1)) if number % 65 else updates.change(answer=True) for number in range(5_000)
    )
    came = b"".join([pair.engine.receive(octets[at : at + size]) for at in range(0, len(octets), size)])
    assert len(came) == sum(number % 5 + 1 for number in range(5_000) if number % 65)


@contextmanager
def transport_of(pair: TlsPair) -> Iterator[tuple[socket.socket, socket.socket, select.epoll, TlsTransport]]:
    """A transport with the pair's engine: its socket, the client's, who watches it, and itself."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    service = GrpcService(Worker("test", Limits()), {})
    service.start(None)  # type: ignore[arg-type]
    with theirs, select.epoll() as epoll:
        transport = TlsTransport(ours, service, "test", epoll, 1_000, MemoryBudget(2**30), 0, pair.engine)
        try:
            yield ours, theirs, epoll, transport
        finally:
            transport.close()


@pytest.mark.parametrize("way", ["pieces", "views"])
def test_a_read_of_many_records_is_short_and_the_next_ones_are_shorter(
    server: ssl.SSLContext, tmp_path: Path, way: str
) -> None:
    pair, updates = changing_keys(server, tmp_path)
    with transport_of(pair) as (_, theirs, _, transport):
        theirs.setblocking(False)

        def read() -> int:
            if way == "pieces":
                return len(transport.receive(262_144))
            return transport.receive_into([memoryview(bytearray(10)), memoryview(bytearray(300_000))])

        def send(*contents: bytes) -> None:
            octets = b"".join([updates.data(content) for content in contents])
            assert theirs.send(octets) == len(octets)

        large = [bytes(16_384)] * 4
        send(*large, *[b"x"] * 3_000)
        sizes = [read()]
        while sum(sizes) < 4 * 16_384 + 3_000:
            sizes.append(read())
        assert 4 * 16_384 < sizes[0] < 4 * 16_384 + 1_500
        assert max(sizes[1:]) < 200
        send(*large)
        assert read() == 4 * 16_384


def test_a_client_that_changes_keys_and_reads_nothing_is_read_no_further(
    server: ssl.SSLContext, tmp_path: Path
) -> None:
    pair, updates = changing_keys(server, tmp_path)
    with transport_of(pair) as (ours, theirs, epoll, transport):

        def congested_by(changes: int) -> bool:
            for _ in range(changes):
                change = updates.change(answer=True)
                theirs.sendall(change + b"".join([updates.data(b"x") for _ in range(65)]))
                assert transport.receive(65_536) == b"x" * 65
            return transport.congested

        assert not congested_by(2)
        assert transport.waiting_bytes == 0  # although nothing else is to be sent
        assert theirs.recv(65_536)
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(65_536))
        assert not congested_by(1_000 // 27)
        assert congested_by(1)
        theirs.sendall(updates.data(b"x"))
        assert not epoll.poll(0)
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                theirs.recv(2**20)
        assert epoll.poll(0) == [(ours.fileno(), select.EPOLLOUT)]
        assert transport.send_unsent()
        assert (transport.congested, transport.waiting_bytes) == (False, 0)
        assert epoll.poll(0) == [(ours.fileno(), select.EPOLLIN)]
