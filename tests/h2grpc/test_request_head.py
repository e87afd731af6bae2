"""What a request's header list says, and that what is remembered of other requests never changes it."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.frames import STREAM, UNARY, block, request
from tests.h2grpc.support import COMPRESSIBLE, METHODS
from toutates.h2grpc import GrpcError, Limits, Method, Status
from toutates.h2grpc.header_field import HeaderField, Pair, complaint, make_field, texts_of
from toutates.h2grpc.headers import HeaderReader, RequestHead
from toutates.h2grpc.request_head import RequestJudge, _judge


def reader(response_encoding: str = "") -> HeaderReader:
    return HeaderReader(METHODS, Limits(), response_encoding)


def head(*extra: tuple[str | bytes, str | bytes], path: str = UNARY, encoding: str = "") -> RequestHead:
    return reader(response_encoding=encoding).read(block(request(path, *extra)))


def test_head_of_a_plain_call() -> None:
    plain = head()
    assert (plain.malformed, plain.error, plain.timeout_ns, plain.content_length) == ("", None, None, None)
    assert (plain.encoding, plain.response_encoding, plain.not_grpc) == ("identity", "", False)
    assert plain.metadata() == []


@pytest.mark.parametrize(
    ("extra", "status", "text"),
    [
        (("grpc-timeout", "1"), Status.INTERNAL, "invalid grpc-timeout value: '1'"),
        (("grpc-timeout", "-1S"), Status.INTERNAL, "invalid grpc-timeout"),
        (("grpc-timeout", "123456789S"), Status.INTERNAL, "invalid grpc-timeout"),
        (("grpc-encoding", "snappy"), Status.INTERNAL, "unknown grpc-encoding 'snappy'"),
        (("x-large", "v" * 17_000), Status.RESOURCE_EXHAUSTED, "received metadata size exceeds the limit (17"),
    ],
)
def test_head_refuses(extra: tuple[str, str], status: Status, text: str) -> None:
    refused = head(extra)
    assert refused.error is not None
    assert refused.error.status == status
    assert text in refused.error.text
    assert refused.method is None


def test_head_of_an_unknown_path_is_unimplemented() -> None:
    error = head(path="/test.Echo/Nothing").error
    assert error is not None
    assert (error.status, error.text) == (Status.UNIMPLEMENTED, "Method not found: /test.Echo/Nothing")


def test_head_takes_te_in_any_case() -> None:
    fields = [(name, "Trailers" if name == "te" else value) for name, value in request()]
    assert not reader().read(block(fields)).malformed


@pytest.mark.parametrize(
    ("extra", "malformed"),
    [
        ([("host", "test")], ""),
        ([("host", "TEST")], ""),
        ([("host", "elsewhere")], "host and :authority differ"),
        ([("host", "test"), ("host", "elsewhere")], "host and :authority differ"),
        ([("host", "")], "host and :authority differ"),
    ],
)
def test_head_is_malformed_where_host_and_authority_differ(extra: list[tuple[str, str]], malformed: str) -> None:
    assert head(*extra).malformed == malformed


def test_head_does_with_a_host_and_no_authority_but_not_with_two_of_them() -> None:
    fields = [field for field in request() if field[0] != ":authority"]
    assert not reader().read(block([*fields, ("host", "elsewhere")])).malformed
    assert reader().read(block([*fields, ("host", "a"), ("host", "b")])).malformed


def test_fields_that_are_alike_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Pair] = []

    def judge(field: Pair) -> str:
        judged.append(field)
        return complaint(field)

    monkeypatch.setattr("toutates.h2grpc.request_head.complaint", judge)
    assert not head(*[("a", str(number)) for number in range(300)]).malformed
    assert len(judged) < 10


def test_verdict_on_one_host_is_not_another_hosts() -> None:
    judge = reader()
    assert not judge.read(block(request(UNARY, ("host", "test")))).malformed
    assert judge.read(block(request(UNARY, ("host", "other")))).malformed


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_head_knows_grpc_by_its_content_type(content_type: str, is_grpc: bool) -> None:
    fields = [(n, content_type if n == "content-type" else v) for n, v in request()]
    assert reader().read(block(fields)).not_grpc is not is_grpc


def test_head_gives_metadata_without_the_fields_of_the_protocol() -> None:
    binary = b"\x00\xff\x01\x02"
    encoded = base64.b64encode(binary).decode()
    plain = head(
        ("user-agent", "x"),
        ("grpc-timeout", "1S"),
        ("x-text", "a, b"),
        ("x-latin", b"caf\xe9"),
        ("padded-bin", encoded),
        ("bare-bin", encoded.rstrip("=")),
        ("two-bin", f"{encoded},{encoded.rstrip('=')}"),
        ("empty-bin", ""),
        ("x-text", "again"),
    )
    assert plain.metadata() == [
        ("x-text", "a, b"),
        ("x-latin", "café"),
        ("padded-bin", binary),
        ("bare-bin", binary),
        ("two-bin", binary),
        ("two-bin", binary),
        ("empty-bin", b""),
        ("x-text", "again"),
    ]


def test_head_refuses_metadata_that_is_not_base64() -> None:
    for value in ("!", "a", "ab=c"):
        with pytest.raises(GrpcError, match="'x-bin' is not valid base64") as caught:
            head(("x-bin", value)).metadata()
        assert caught.value.status is Status.INTERNAL


@pytest.mark.parametrize(
    ("accepted", "configured", "path", "expected"),
    [
        ("identity,deflate,gzip", "gzip", "/test.Echo/Compressible", "gzip"),
        ("identity, deflate, gzip", "deflate", "/test.Echo/Compressible", "deflate"),
        ("identity", "gzip", "/test.Echo/Compressible", ""),
        ("gzipped", "gzip", "/test.Echo/Compressible", ""),
        ("gzip", "", "/test.Echo/Compressible", ""),
        ("gzip", "gzip", UNARY, ""),
        ("gzip", "gzip", STREAM, ""),
    ],
)
def test_response_is_compressed_when_server_client_and_method_agree(
    accepted: str, configured: str, path: str, expected: str
) -> None:
    assert head(("grpc-accept-encoding", accepted), path=path, encoding=configured).response_encoding == expected


# --- the memory of verdicts ------------------------------------------------------------------------------------------


def judged(judge: RequestJudge, pairs: list[Pair]) -> tuple[object, ...]:
    """Everything a head says, as values that compare."""
    fields = tuple(make_field(name, value) for name, value in pairs)
    head = judge.judge(fields, sum(field[2] for field in fields))
    assert head.fields == fields
    return said(head)


def said(head: RequestHead) -> tuple[object, ...]:
    error = head.error
    return (
        head.method,
        head.malformed,
        head.not_grpc,
        head.http_method,
        None if error is None else (error.status, error.text, error.metadata),
        head.timeout_ns,
        head.encoding,
        head.response_encoding,
        head.content_length,
    )


def judge_of(entries: int = 128, max_header_list_size: int = 16_384) -> RequestJudge:
    limits = Limits(header_memory_entries=entries, max_header_list_size=max_header_list_size)
    return RequestJudge(METHODS, limits, "gzip")


PLAIN: list[Pair] = [(str(n).encode(), str(v).encode()) for n, v in request(COMPRESSIBLE)]


def test_requests_that_differ_in_metadata_and_deadline_share_one_verdict_and_keep_what_is_theirs() -> None:
    judge = judge_of()
    heads = []
    for number in range(5):
        fields = [*PLAIN, (b"grpc-timeout", b"%dS" % number), (b"traceparent", b"00-%d" % number)]
        heads.append(judge.judge(tuple(make_field(*pair) for pair in fields), 400))
    assert len(judge.verdicts) == 1
    assert [head.timeout_ns for head in heads] == [number * 10**9 for number in range(5)]
    assert [head.metadata() for head in heads] == [[("traceparent", f"00-{number}")] for number in range(5)]


def test_metadata_between_pseudo_header_fields_is_malformed_however_often_the_rest_was_seen() -> None:
    judge = judge_of()
    custom = (b"x-id", b"1")
    assert judged(judge, [*PLAIN, custom])[1] == ""
    for at in range(4):
        assert judged(judge, [*PLAIN[:at], custom, *PLAIN[at:]])[1] == "pseudo-header field after a regular field"
    assert judged(judge, [*PLAIN, custom])[1] == ""


def test_refusals_for_the_size_and_for_the_deadline_are_not_remembered() -> None:
    judge = judge_of(max_header_list_size=500)
    fine = [*PLAIN, (b"grpc-timeout", b"1S"), (b"x-id", b"1")]
    for wrong, status in (
        ([*PLAIN, (b"grpc-timeout", b"1S"), (b"x-id", b"1" * 500)], Status.RESOURCE_EXHAUSTED),
        ([*PLAIN, (b"grpc-timeout", b"soon"), (b"x-id", b"1")], Status.INTERNAL),
    ):
        for _ in range(2):
            method, _, _, _, error, timeout_ns, *_ = judged(judge, wrong)
            assert (method, timeout_ns) == (None, None)
            assert isinstance(error, tuple)
            assert error[0] is status
            method, _, _, _, error, timeout_ns, *_ = judged(judge, fine)
            assert (method, error, timeout_ns) == (METHODS[COMPRESSIBLE.encode()], None, 10**9)


def test_list_may_be_as_large_as_the_limit_and_its_content_length_binds_however_it_is_refused() -> None:
    size = sum(len(name) + len(value) + 32 for name, value in [*PLAIN, (b"content-length", b"7")])
    at_limit, above = judge_of(max_header_list_size=size), judge_of(max_header_list_size=size - 1)
    assert judged(at_limit, [*PLAIN, (b"content-length", b"7")])[4] is None
    *_, error, _, _, _, content_length = judged(above, [*PLAIN, (b"content-length", b"7")])
    assert error is not None
    assert content_length == 7


def test_last_of_several_deadlines_counts() -> None:
    both = [*PLAIN, (b"grpc-timeout", b"1S"), (b"x-id", b"1"), (b"grpc-timeout", b"3S")]
    assert judged(judge_of(), both)[5] == 3 * 10**9


def test_memory_of_verdicts_is_bounded_by_number_and_by_the_size_of_lists() -> None:
    judge = judge_of(entries=4)
    for number in range(50):
        judged(judge, [*PLAIN, (b"content-length", b"%d" % number)])
        assert len(judge.verdicts) <= 4
    before = dict(judge.verdicts)
    judged(judge, [*PLAIN, (b"te", b"v" * 5_000)])
    assert judge.verdicts == before


NAMES = st.sampled_from(
    [
        *(b":method", b":scheme", b":path", b":authority", b":status", b":", b""),
        *(b"content-type", b"te", b"content-length", b"connection", b"upgrade", b"user-agent"),
        *(b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-trace-bin"),
        *(b"x-id", b"x-bin", b"traceparent", b"X-Id", b"x:id", b"x id"),
    ]
)
VALUES = st.sampled_from(
    [
        *(b"POST", b"GET", b"CONNECT", b"http", UNARY.encode(), COMPRESSIBLE.encode(), b"/nowhere", b"test"),
        *(b"application/grpc", b"application/grpc+proto", b"text/html", b"trailers", b"gzip", b"identity", b"snappy"),
        *(b"1S", b"20m", b"123456789S", b"5", b"7", b"-1", b"", b"\xe9", b"v" * 900),
        *(b" x", b"x ", b"x\t", b"x\0y", b"x\r\ny"),
    ]
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["append", "insert", "replace", "delete"]), st.integers(0, 9), NAMES, VALUES), max_size=4
)


def changed(changes: list[tuple[str, int, bytes, bytes]]) -> list[Pair]:
    """A plain request, changed here and there."""
    pairs = list(PLAIN)
    for kind, at, name, value in changes:
        at = min(at, len(pairs))
        if kind == "append":
            pairs.append((name, value))
        else:
            pairs[at : at + (kind != "insert")] = [] if kind == "delete" else [(name, value)]
    return pairs


@settings(max_examples=100, deadline=None)
@given(st.lists(CHANGES, max_size=12))
def test_judge_with_memory_says_what_one_without_says(lists: list[list[tuple[str, int, bytes, bytes]]]) -> None:
    judge = judge_of(entries=3, max_header_list_size=1_000)
    for changes in lists:
        pairs = changed(changes)
        assert judged(judge, pairs) == judged(judge_of(max_header_list_size=1_000), pairs)


@settings(max_examples=200, deadline=None)
@given(CHANGES)
def test_stand_ins_are_judged_as_the_fields_they_stand_in_for(changes: list[tuple[str, int, bytes, bytes]]) -> None:
    pairs = changed(changes)
    stand_ins = [make_field(name, value)[3] for name, value in pairs]
    assert said(_judge(tuple(stand_ins), METHODS, "gzip")) == said(_judge(tuple(pairs), METHODS, "gzip"))


# --- variants


def test_another_method_answers_calls_with_certain_headers() -> None:
    chosen = Method(UNARY, unary=lambda call: None)
    asked: list[list[bytes]] = []

    def variant(fields: Sequence[HeaderField]) -> Method | None:
        asked.append(texts_of(fields, b"x-which"))
        return chosen if asked[-1] == [b"other"] else None

    usual = Method(UNARY, unary=lambda call: None, variant=variant)
    own = HeaderReader({UNARY.encode(): usual}, Limits(), "")
    for which, expected in (("other", chosen), ("usual", usual), ("other", chosen)):
        # By their values, which are not part of what verdicts are remembered by.
        assert own.read(block(request(UNARY, ("x-which", which), ("grpc-timeout", "1S")))).method is expected
    assert asked[:2] == [[b"other"], [b"usual"]]
    asked.clear()
    refused = own.read(block(request(UNARY, ("x-which", "other"), ("grpc-timeout", "soon"))))
    assert refused.method is None
    assert not asked
