"""What a connection makes of requests, and in which order it answers."""

from __future__ import annotations

import gzip
import random
import zlib
from collections import deque
from collections.abc import Callable

import pytest

from tests.http1.support import FIELDS, answer, conversation, cuts, request, statuses
from toutates.http1 import Connection, Head, Limits, Receiving, Refused, Request, encode_fields
from toutates.http1.chunks import ChunkReader
from toutates.http1.coding import INFLATE_STEP, STATE_BYTES, Inflater


def owes(connection: Connection) -> Receiving:
    """What its peer owes it; a function, so that a type checker does not believe it to stay."""
    return connection.receiving


def is_known(connection: Connection) -> bool:
    """Whether it expects one more request like the last one; a function for the same reason."""
    return connection.latest is not None


CHUNKED_BODY = b"5\r\nhello\r\n1;a=b\r\n \r\n5\r\nworld\r\n0\r\nx: y\r\n\r\n"

MIXED = (
    b"\r\n"
    + request(target="/a?b=c", accept="*/*")
    + request("POST", "/b", b"\r\n\r\n" * 3)
    + request("POST", "/c", CHUNKED_BODY, transfer_encoding="chunked")
    + request("BREW", "/d")
    + request("POST", "/e", gzip.compress(b"x" * 3_000), content_encoding="gzip")
    + request("POST", "/m", b"".join(map(gzip.compress, (b"x" * 300, b"", b"y"))), content_encoding="X-GZIP")
    + request("POST", "/f", zlib.compress(b"y" * 10), content_encoding="deflate", expect="100-continue")
    + request(target="http://other/g?h")
    + request("HEAD", "/i", connection="close")
    + request(target="/never")
)


def test_requests_are_the_same_however_their_bytes_are_cut() -> None:
    expected = [
        ("GET", "/a?b=c", b""),
        ("POST", "/b", b"\r\n\r\n" * 3),
        ("POST", "/c", b"hello world"),
        ("BREW", "/d", b""),
        ("POST", "/e", b"x" * 3_000),
        ("POST", "/m", b"x" * 300 + b"y"),
        ("POST", "/f", b"y" * 10),
        ("GET", "/g?h", b""),
        ("HEAD", "/i", b""),
    ]
    whole = conversation([MIXED])[1]
    for pieces in cuts(MIXED):
        assert conversation(pieces) == (expected, whole)
    assert statuses(whole) == [200, 200, 200, 200, 200, 200, 100, 200, 200, 200]
    assert whole.count(b"connection: close") == 1
    assert whole.endswith(b"content-length: 9\r\nconnection: close\r\n\r\n")  # of HEAD, without the body


def test_answers_go_out_in_the_order_of_the_requests() -> None:
    connection = Connection(Limits())
    first, second, third = connection.receive(b"".join(request(target=f"/{number}") for number in range(3)))
    third.respond(200, b"", b"third")
    second.begin(200)
    second.send(b"sec")
    assert connection.take_output() == []
    assert connection.held_bytes == len(b"".join([*(second.held or ()), *(third.held or ())]))
    first.respond(200, b"", b"first")
    sent = b"".join(connection.take_output())
    assert sent.endswith(b"3\r\nsec\r\n")
    assert b"first" in sent
    second.send(b"ond")
    second.end()
    rest = b"".join(connection.take_output())
    assert rest.startswith(b"3\r\nond\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert rest.endswith(b"third")
    assert (connection.unanswered, connection.held_bytes) == (0, 0)


def test_no_more_requests_are_read_than_may_wait() -> None:
    connection = Connection(Limits(max_pipelined=2))
    requests = connection.receive(b"".join(request(target=f"/{number}") for number in range(5)) + b"GET")
    assert [one.head.target for one in requests] == ["/0", "/1"]
    assert owes(connection) is Receiving.PAUSED
    assert connection.go_on() == []
    answer(requests[1])
    assert connection.go_on() == []  # it waits for the answer before it
    answer(requests[0])
    assert [one.head.target for one in connection.go_on()] == ["/2", "/3"]


def test_one_call_does_a_bounded_piece_of_the_work() -> None:
    connection = Connection(Limits())
    data = b"".join(b"1\r\nx\r\n" for _ in range(2_000)) + b"0\r\n\r\n"
    assert connection.receive(request("POST", transfer_encoding="chunked") + data) == []
    assert connection.behind
    assert owes(connection) is Receiving.PAUSED
    calls = 1
    while not (requests := connection.go_on()):
        calls += 1
    assert calls > 10
    assert requests[0].body == b"x" * 2_000


def test_a_chunked_body_ends_before_the_next_request() -> None:
    reader = ChunkReader(Limits())
    data, at = b"1\r\nx\r\n0\r\n\r\nGET", 0
    pieces = []
    while not reader.ended:
        step = reader.step(data, at)
        assert step is not None
        at = step[0]
        pieces.append(step[1])
    assert (b"".join(pieces), data[at:]) == (b"x", b"GET")


def test_a_head_that_comes_again_is_not_parsed_again() -> None:
    connection = Connection(Limits(remembered_heads=2))
    heads = []
    for number in (0, 0, 1, 0, 2, 3, 0):
        [one] = connection.receive(request(target=f"/{number}"))
        answer(one)
        heads.append(one.head)
    assert heads[0] is heads[1] is heads[3]
    assert heads[6] is not heads[0]  # forgotten for newer ones
    large = request(cookie="x" * 5_000)
    [one] = connection.receive(large)
    answer(one)
    assert connection.receive(large)[0].head is not one.head


def test_a_request_like_the_last_one_is_read_at_once_and_any_other_in_its_own_way() -> None:
    connection = Connection(Limits(max_pipelined=2))
    like = request("POST", "/a", b"one")
    for _ in range(3):
        [one] = connection.receive(like)
        answer(one)
    assert is_known(connection)
    assert conversation([like.replace(b"one", b"two")], connection)[0] == [("POST", "/a", b"two")]
    assert conversation([like + like], connection)[0] == [("POST", "/a", b"one")] * 2
    assert conversation([like[:-1], b"x"], connection)[0] == [("POST", "/a", b"onx")]
    assert conversation([like], connection)[0] == [("POST", "/a", b"one")]
    assert conversation([request("POST", "/b", b"one")], connection)[0] == [("POST", "/b", b"one")]
    assert len(connection.receive(like)) == len(connection.receive(like)) == 1
    assert connection.receive(like) == []  # two wait
    connection.drain()
    assert not is_known(connection)
    assert connection.receive(like) == []


def test_nothing_is_read_after_an_answer_that_ends_the_connection() -> None:
    connection = Connection(Limits())
    old = request("POST", "/old", b"x", version="1.0", connection="keep-alive")
    for _ in range(2):
        [one] = connection.receive(old)
        answer(one)
    [one] = connection.receive(old)
    one.begin(200)  # whose end is that of the connection
    assert connection.receive(old) == []


def test_an_answer_in_parts_goes_out_as_the_client_can_read_it() -> None:
    def reply(one: Request) -> None:
        one.responder.reply(one, (b"content-length: 1\r\n\r\n", bytes(one.body)), 1)

    connection = Connection(Limits())
    first, second = connection.receive(request("POST", "/a", b"1") + request("POST", "/b", b"2"))
    reply(second)
    assert connection.take_output() == []
    reply(first)
    reply(first)  # once
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n"
    assert b"".join(connection.take_output()) == head + b"\r\n1" + head + b"\r\n2"
    for version, field, ends in (("1.0", "keep-alive", False), ("1.1", "close", True)):
        [one] = connection.receive(request("POST", "/c", b"3", version=version, connection=field))
        reply(one)
        assert b"".join(connection.take_output()) == head + f"connection: {field}\r\n\r\n3".encode()
        assert connection.finished is ends


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_every_answer_has_the_common_fields(version: str) -> None:
    times = iter(range(9))
    connection = Connection(Limits(), common=lambda: b"date: %d\r\n" % next(times))
    keep = {"version": version, "connection": "keep-alive"}
    head, end = b"HTTP/1.1 200 OK\r\n", b"connection: keep-alive\r\n\r\n" if version == "1.0" else b"\r\n"
    for at in range(2):
        [one] = connection.receive(request("POST", "/a", b"1", **keep))
        one.responder.reply(one, (b"\r\n", b"1"), 1)
        assert b"".join(connection.take_output()) == head + b"date: %d\r\n" % at + end + b"1"
    [one] = connection.receive(request("POST", "/a", b"1", **keep))
    one.respond(204)
    assert b"".join(connection.take_output()) == b"HTTP/1.1 204 No Content\r\ndate: 2\r\n" + end
    assert connection.receive(b"garbage\r\n\r\n") == []
    assert b"\r\ndate: 3\r\n" in b"".join(connection.take_output())


def test_a_driver_is_told_once_that_there_is_something_to_send() -> None:
    connection = Connection(Limits())
    dirty: list[str] = []
    connection.answers.link, connection.answers.dirty = "link", dirty
    for _ in range(2):
        for one in connection.receive(request() * 2):
            answer(one)
        connection.take_output()
    connection.receive(b"no request\r\n\r\n")
    assert dirty == ["link"] * 3


def test_a_head_says_what_the_client_wants() -> None:
    connection = Connection(Limits())
    fields = {"accept_encoding": "br, gzip;q=0.5, deflate;q=0.8", "X_Two": "a"}
    [one] = connection.receive(
        request("GET", "/p%20q?r=s?t", b"", **fields).replace(b"X-Two: a", b"X-Two: a\r\nx-two:  b ")
    )
    head = one.head
    assert (head.method, head.target, head.path, head.query) == ("GET", "/p%20q?r=s?t", "/p%20q", "r=s?t")
    assert head.fields == {"host": "x", "accept-encoding": "br, gzip;q=0.5, deflate;q=0.8", "x-two": "a, b"}
    assert head.answer_coding == "deflate"
    found, _ = conversation([request(target="/a?url=http://h/b"), request(target="https://h"), request(target="*")])
    assert [target for _, target, _ in found] == ["/a?url=http://h/b", "/", "*"]


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate, gzip", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0, *", "deflate"),
        ("br", ""),
        ("", ""),
        ("gzip;q=0", ""),
        ("identity", ""),
        ("GZIP;Q=1.0", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip;q=0.001, deflate;q=0", "gzip"),
    ],
)
def test_answers_are_compressed_as_the_client_likes(accept: str, coding: str) -> None:
    body = b"abc" * 1_000
    for method in ("GET", "HEAD"):
        _, sent = conversation(
            [request(method, accept_encoding=accept)], respond=lambda one: one.respond(200, FIELDS, body, compress=True)
        )
        head, _, rest = sent.partition(b"\r\n\r\n")
        assert b"vary: accept-encoding" in head
        assert (b"content-encoding: " + coding.encode() in head) is bool(coding)
        if method == "GET":
            assert int(head.partition(b"content-length: ")[2].split()[0]) == len(rest)
            assert rest == body if not coding else zlib.decompress(rest, 47) == body  # of either format


def test_a_compressed_body_comes_out_whole_however_large_it_becomes() -> None:
    for body in (bytes(65_536), bytes(300_001), b"abcdefgh" * 20_000):
        for packed, coding in ((gzip.compress(body), "gzip"), (zlib.compress(body), "deflate")):
            [found], _ = conversation([request("POST", "/", packed, content_encoding=coding)])
            assert found[2] == body
    [found], _ = conversation([request("POST", "/", b"as it is", content_encoding="identity")])
    assert found[2] == b"as it is"


def test_a_body_of_many_members_comes_out_whole_and_each_costs_only_itself() -> None:
    empty = gzip.compress(b"")
    packed = gzip.compress(bytes(100_000)) + empty * 60_000 + gzip.compress(b"end")  # 1.2 MB
    inflater = Inflater("gzip", 200_000)
    inflater.put(packed)
    steps = sum(1 for _ in iter(inflater.step, False))
    assert inflater.finish() == bytes(100_000) + b"end"
    assert inflater.size == 100_003
    assert steps < 60_100


def test_members_of_gzip_without_end_are_refused() -> None:
    inflater = Inflater("gzip", 100)
    inflater.put(gzip.compress(b"") * 70_000)
    with pytest.raises(Refused, match="more than 65536 members"):
        deque(iter(inflater.step, False))


@pytest.mark.parametrize(("pack", "coding"), [(gzip.compress, "gzip"), (zlib.compress, "deflate")])
def test_what_follows_compressed_data_and_is_no_member_is_refused(pack: Callable[[bytes], bytes], coding: str) -> None:
    for rest in (b"x", b"\x00", zlib.compress(b"a"), b"\x1f"):
        _, sent = conversation([request("POST", "/", pack(b"a") + rest, content_encoding=coding)])
        assert statuses(sent) == [400]


def test_no_more_is_decompressed_than_shows_that_it_is_too_much() -> None:
    for most in (100, 40_000):
        inflater = Inflater("deflate", most)
        inflater.put(zlib.compress(bytes(1_000_000)))
        with pytest.raises(Refused):
            deque(iter(inflater.step, False))
        assert len(inflater.body) == most + 1


def test_large_bodies_are_not_copied_to_their_head() -> None:
    for size, pieces in ((65_536, 1), (65_537, 2)):
        connection = Connection(Limits())
        [one] = connection.receive(request())
        one.respond(200, b"", bytes(size))
        assert len(connection.take_output()) == pieces


def test_an_answer_in_parts_is_not_copied_even_while_it_waits() -> None:
    connection = Connection(Limits())
    parts = [bytes(100_000), b"end"]
    first, second, head = connection.receive(request() + request() + request("HEAD"))
    second.respond_in_parts(FIELDS, parts, 100_003)
    head.respond_in_parts(FIELDS, parts, 100_003)
    assert connection.take_output() == []
    assert connection.held_bytes > 100_003
    first.respond(200)
    sent = connection.take_output()
    assert [id(piece) for piece in sent[2:4]] == [id(part) for part in parts]
    field = b"content-length: 100003\r\n\r\n"
    assert bytes(sent[1]).endswith(field)
    assert bytes(sent[4]).endswith(field)
    assert len(sent) == 5
    assert connection.held_bytes == 0


def test_an_answer_of_unknown_length_comes_in_chunks_and_compressed() -> None:
    def stream(one: Request) -> None:
        one.begin(200, FIELDS, compress=True)
        for piece in (b"a" * 100, b"", b"b" * 100):
            one.send(piece)
        one.end()

    _, plain = conversation([request()], respond=stream)
    assert plain.endswith(b"\r\n\r\n64\r\n" + b"a" * 100 + b"\r\n64\r\n" + b"b" * 100 + b"\r\n0\r\n\r\n")
    _, packed = conversation([request(accept_encoding="gzip")], respond=stream)
    rest, body = packed.partition(b"\r\n\r\n")[2], b""
    while size := int(rest.partition(b"\r\n")[0], 16):
        rest = rest.partition(b"\r\n")[2]
        body, rest = body + rest[:size], rest[size + 2 :]
    assert gzip.decompress(body) == b"a" * 100 + b"b" * 100
    _, head = conversation([request("HEAD")], respond=stream)
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")


def test_statuses_without_a_body_have_none() -> None:
    for status in (204, 304):
        _, sent = conversation([request()], respond=lambda one, status=status: one.respond(status, b"", b"x"))  # type: ignore[misc]
        assert sent.endswith(b"\r\n\r\n")
        assert b"content-length" not in sent

        def stream(one: Request, status: int = status) -> None:
            one.begin(status)
            one.send(b"x")
            one.end()

        _, sent = conversation([request()], respond=stream)
        assert sent.endswith(b"\r\n\r\n")
        assert b"transfer-encoding" not in sent


def test_a_connection_goes_on_as_its_version_says() -> None:
    for version, connection, goes_on, said in (
        ("1.1", "", True, b""),
        ("1.1", "x, Close", False, b"connection: close"),
        ("1.0", "", False, b"connection: close"),
        ("1.0", "Keep-Alive", True, b"connection: keep-alive"),
    ):
        one = Connection(Limits())
        _, sent = conversation([request(version=version, connection=connection)], one)
        assert said in sent
        assert one.finished is not goes_on
    one = Connection(Limits())
    octets = request(version="1.0", connection="keep-alive")

    def stream(one: Request) -> None:
        one.begin(200)
        one.send(b"abc")
        one.end()

    _, sent = conversation([octets, octets], one, respond=stream)
    assert sent.endswith(b"connection: close\r\n\r\nabc")  # its end is the connection's
    assert one.finished


def test_a_client_that_waits_is_told_to_go_on_but_not_before_its_turn() -> None:
    connection = Connection(Limits())
    waits = request("POST", "/b", expect="100-continue", content_length="3")
    [first] = connection.receive(request(target="/a") + waits)
    assert owes(connection) is Receiving.PAUSED
    answer(first)
    assert connection.go_on() == []
    assert owes(connection) is Receiving.BODY
    held = connection.held_bytes
    output = b"".join(connection.take_output())
    assert output.endswith(b"GET /a 0HTTP/1.1 100 Continue\r\n\r\n")
    assert held == len(output)
    [second] = connection.receive(b"abc")
    assert second.body == b"abc"
    old = request("POST", "/b", b"abc", version="1.0", expect="100-continue")
    assert statuses(conversation([old])[1]) == [200]


def admit(head: Head) -> int:
    if head.path == "/no":
        raise Refused(404, "nothing here", encode_fields({"x": "y"}))
    return 10


def test_what_is_not_admitted_is_answered_in_its_turn_and_its_body_is_not_read() -> None:
    connection = Connection(Limits(), admit, lambda: b"date: today\r\n")
    first, third = connection.receive(request() + request(target="/no") + request(target="/yes"))
    assert connection.take_output() == []
    answer(first)
    answer(third)
    sent = b"".join(connection.take_output())
    assert statuses(sent) == [200, 404, 200]
    assert sent.count(b"date: today") == 3
    assert b"x: y\r\n" in sent
    assert b"nothing here\n" in sent
    connection = Connection(Limits(), admit)
    _, sent = conversation([request(target="/no", connection="close") + request()], connection)
    assert statuses(sent) == [404]
    assert connection.finished
    for body in (
        {"body": b"x" * 11},
        {"content_length": "11", "expect": "100-continue"},
        {"target": "/no", "body": b"x"},
    ):
        connection = Connection(Limits(), admit)
        found, sent = conversation([request("POST", **body)], connection)
        assert found == []
        assert statuses(sent) == [404 if "target" in body else 413]
        assert b"connection: close" in sent
        assert connection.finished
        assert connection.receive(request()) == []


def test_a_connection_says_what_it_waits_for() -> None:
    connection = Connection(Limits())
    assert owes(connection) is Receiving.IDLE
    connection.receive(b"\r\nP")
    assert owes(connection) is Receiving.HEAD
    connection.receive(request("POST", content_length="5")[1:])
    assert owes(connection) is Receiving.BODY
    assert connection.held_bytes == 0
    connection.receive(b"abc")
    assert connection.held_bytes == 3
    [one] = connection.receive(b"de")
    assert owes(connection) is Receiving.IDLE
    assert connection.unanswered == 1
    answer(one)
    assert connection.unanswered == 0


@pytest.mark.parametrize(
    ("data", "status"), [(b"", []), (b"GET / HT", [408]), (request("POST", content_length="3"), [408])]
)
def test_one_that_takes_too_long_is_told_so_where_it_has_begun(data: bytes, status: list[int]) -> None:
    connection = Connection(Limits())
    connection.receive(data)
    connection.time_out()
    assert statuses(b"".join(connection.take_output())) == status
    assert connection.finished
    assert owes(connection) is Receiving.ENDED


def test_at_its_end_a_connection_answers_what_has_begun() -> None:
    idle = Connection(Limits())
    idle.drain()
    assert idle.finished
    busy = Connection(Limits())
    [first] = busy.receive(request() + request("POST", "/b", content_length="3"))
    busy.drain()
    answer(first)
    [second] = busy.receive(b"abc" + request(target="/too-late"))
    answer(second)
    sent = b"".join(busy.take_output())
    assert sent.count(b"connection: close") == 1
    assert sent.endswith(b"POST /b 3")


def test_one_that_is_to_leave_says_so_in_the_answer_to_its_next_request() -> None:
    connection = Connection(Limits(keep_alive_s=7))
    [first] = connection.receive(request())
    answer(first)
    connection.leave()
    assert owes(connection) is not Receiving.ENDED
    [second] = connection.receive(request())
    assert owes(connection) is Receiving.ENDED
    answer(second)
    assert connection.finished
    before, after = b"".join(connection.take_output()).split(b"GET / 0", 1)
    assert b"keep-alive: timeout=7\r\n" in before
    assert b"connection: close" not in before
    assert b"keep-alive" not in after
    assert after.endswith(b"connection: close\r\n\r\nGET / 0")


def test_one_that_is_to_leave_says_so_in_the_answer_that_is_awaited() -> None:
    connection = Connection(Limits())
    [first, second] = connection.receive(request(target="/a") + request(target="/b"))
    answer(second)  # which waits, and whose head is written
    connection.leave()
    assert owes(connection) is Receiving.IDLE
    answer(first)
    [third] = connection.receive(request(target="/c"))
    connection.leave()
    answer(third)
    assert connection.finished
    connection = Connection(Limits())
    [only] = connection.receive(request())
    connection.leave()
    assert owes(connection) is Receiving.ENDED
    answer(only)
    assert b"".join(connection.take_output()).count(b"connection: close") == 1


def test_one_that_is_to_leave_awaits_a_request_where_the_last_answer_has_begun() -> None:
    connection = Connection(Limits())
    [first] = connection.receive(request())
    first.begin(200, FIELDS)
    connection.leave()
    first.end()
    assert owes(connection) is not Receiving.ENDED
    answer(*connection.receive(request()))
    assert connection.finished
    assert b"".join(connection.take_output()).count(b"connection: close") == 1


@pytest.mark.parametrize("room", [1, 16])
def test_one_that_is_to_leave_answers_all_that_came_with_its_last_request(room: int) -> None:
    connection = Connection(Limits(max_pipelined=room), admit)
    connection.leave()
    targets = ["/a", "/no", "/b", "/c"]
    sent = b"".join(request(target=target) for target in targets) + request("POST", "/d", b"whole")[:-1]
    found = deque(connection.receive(sent))
    answered = []
    for _ in range(3):
        while found:
            one = found.popleft()
            answered.append(one.head.target)
            answer(one)
            found += connection.go_on()
        assert owes(connection) is Receiving.BODY
    found += connection.receive(b"e" + request(target="/too-late"))
    answered += [one.head.target for one in found]
    while found:
        answer(found.popleft())
        found += (more := connection.go_on())
        answered += [one.head.target for one in more]
    assert answered == ["/a", "/b", "/c", "/d", "/too-late"]
    whole = b"".join(connection.take_output())
    assert whole.count(b"connection: close") == 1
    assert whole.endswith(b"connection: close\r\n\r\nGET /too-late 0")


def test_one_that_is_to_leave_says_so_in_a_refusal() -> None:
    connection = Connection(Limits(), admit)
    connection.leave()
    assert connection.receive(request(target="/no")) == []
    assert connection.finished
    sent = b"".join(connection.take_output())
    assert statuses(sent) == [404]
    assert b"connection: close" in sent


def test_at_its_end_a_connection_drops_what_waits_to_be_read() -> None:
    connection = Connection(Limits(max_pipelined=1), admit)
    [first] = connection.receive(request() + request(target="/b"))
    connection.drain()
    answer(first)
    assert connection.go_on() == []
    assert b"connection: close" in connection.take_output()[0]
    assert connection.finished
    connection = Connection(Limits(), admit)
    connection.receive(b"GET /no")
    connection.drain()
    assert connection.receive(b" HTTP/1.1\r\nhost: x\r\n\r\n" + request()) == []
    sent = b"".join(connection.take_output())
    assert statuses(sent) == [404]
    assert b"connection: close" in sent


def test_a_peer_that_says_its_last_is_still_answered() -> None:
    connection = Connection(Limits(max_pipelined=1))
    [first] = connection.receive(request() + request(target="/b"))
    connection.receive_end()
    answer(first)
    assert owes(connection) is Receiving.PAUSED
    [second] = connection.go_on()
    answer(second)
    assert b"connection: close" in connection.take_output()[-1]
    assert connection.finished
    for half in (b"GET / HTTP/1.1\r\n", request("POST", content_length="9") + b"x"):
        assert statuses(conversation([half], end=True)[1]) == [400]
    assert conversation([request()], end=True)[1].count(b"HTTP/1.1") == 1


def test_fields_that_would_end_themselves_are_not_sent() -> None:
    for fields in ({"a": "b\r\nc: d"}, {"a": "b\n"}, {"a b": "c"}, {"": "x"}, {"a": "\0"}, {"a:": "b"}):
        with pytest.raises(ValueError, match="not a header field"):
            encode_fields(fields)
    assert encode_fields({"a": "ä b"}) == "a: ä b\r\n".encode("latin-1")


def test_what_a_body_has_become_is_asked_for_until_it_is_counted() -> None:
    asked: list[int] = []

    def has_room(growth: int) -> bool:
        asked.append(growth // INFLATE_STEP)
        return True

    inflater = Inflater("gzip", 1_000_000, has_room)
    inflater.put(gzip.compress(bytes(5 * INFLATE_STEP)))
    for number in range(4):
        assert inflater.step()
        if number == 1:
            inflater.counted = len(inflater.body)
    assert asked == [2, 1, 2]


def test_a_large_body_is_copied_once_where_there_is_room_for_that() -> None:
    room = 3_000_000

    def has_room(growth: int) -> bool:
        return growth <= room

    whole = random.Random(1).randbytes(1_000) * 2_500
    packed = gzip.compress(whole)
    for most, outcome in ((3_000_000, "server holds too much"), (5_000_000, "")):
        room = most
        inflater = Inflater("gzip", 10_000_000, has_room)
        inflater.put(packed)
        if outcome:
            with pytest.raises(Refused, match=outcome):
                deque(iter(inflater.step, False))
            assert len(inflater.body) == inflater.size == len(whole)
        else:
            deque(iter(inflater.step, False))
            assert inflater.finish() == whole


def test_what_is_kept_to_decompress_a_body_is_counted() -> None:
    connection = Connection(Limits())
    packed = gzip.compress(bytes(1_000))
    connection.receive(request("POST", "/", packed, content_encoding="gzip")[:-1])
    assert connection.held_bytes > STATE_BYTES
