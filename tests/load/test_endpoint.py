"""URLs of servers are read as they are meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import issue
from toutates.bench.endpoint import GRPC, HTTP, Endpoint, Tls, parse_endpoint
from toutates.system.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host:81", Endpoint(GRPC, "host", 81)),
        ("host", Endpoint(GRPC, "host", 8001)),
        ("http://host", Endpoint(HTTP, "host", 8000)),
        ("http://host:1/", Endpoint(HTTP, "host", 1)),
        ("grpc://[::1]:5", Endpoint(GRPC, "::1", 5)),
        ("https://[::1]", Endpoint(HTTP, "::1", 8000, Tls())),
        ("grpcs://host:1", Endpoint(GRPC, "host", 1, Tls())),
    ],
)
def test_a_url_is_an_endpoint(text: str, expected: Endpoint) -> None:
    assert parse_endpoint(text) == expected


def test_a_protocol_and_tls_from_elsewhere_are_used() -> None:
    assert parse_endpoint("host:1", HTTP) == Endpoint(HTTP, "host", 1)
    tls = Tls(ca="file")
    assert parse_endpoint("host:1", GRPC, tls) == parse_endpoint("grpcs://host:1", GRPC, tls)
    assert str(Endpoint(HTTP, "::1", 1, tls)) == "https://[::1]:1"


@pytest.mark.parametrize(
    ("text", "protocol", "tls", "why"),
    [
        ("ftp://host", "", None, "unknown scheme"),
        ("http://host", GRPC, None, "is not the protocol grpc"),
        ("http://host/v2", "", None, "has a path"),
        ("grpc://host", "", Tls(), "has no TLS"),
        ("host:0", "", None, "no port"),
        ("a:b:c", "", None, "is not an address"),
        ("http://", "", None, "is not an address"),
    ],
)
def test_what_is_no_url_is_refused(text: str, protocol: str, tls: Tls | None, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_endpoint(text, protocol, tls)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("flag", ["--tls-ca", "--tls-cert", "--tls-key"])
def test_a_file_of_tls_that_cannot_be_used_is_told_with_its_flag(tmp_path: Path, flag: str, is_there: bool) -> None:
    files = issue(tmp_path)
    wrong, cert, key = str(tmp_path / "wrong.pem"), str(files.cert), str(files.key)
    if is_there:
        Path(wrong).write_text("nothing of that kind")
    tls = {
        "--tls-ca": Tls(ca=wrong, cert=cert, key=key),
        "--tls-cert": Tls(str(files.ca), wrong, key),
        "--tls-key": Tls(str(files.ca), cert, wrong),
    }[flag]
    with pytest.raises(ConfigurationError) as caught:
        tls.context(GRPC)
    told = (flag, wrong)
    if is_there and flag != "--tls-ca":  # which of the two it is about, OpenSSL does not say
        told = ("--tls-cert", f"{tls.cert} with {tls.key}")
    assert (caught.value.key, caught.value.value) == told
