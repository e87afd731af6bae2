"""Messages read by protobuf, or refused as what they are."""

from __future__ import annotations

import pytest

from toutates.protocol.grpc_service_pb2 import ModelReadyRequest
from toutates.protocol.parsing import parse
from toutates.system.errors import MalformedMessage


def test_a_message_is_read() -> None:
    message = ModelReadyRequest(name="m", version="2")
    assert parse(ModelReadyRequest, message.SerializeToString()) == message


@pytest.mark.parametrize("octets", [b"\x0a\xff", b"\x0a\x02\xff\xff", b"\x00"], ids=["cut off", "no UTF-8", "no tag"])
def test_what_is_no_message_is_refused_with_the_name_of_its_kind(octets: bytes) -> None:
    with pytest.raises(MalformedMessage, match=r"^the message is not a ModelReadyRequest: .") as refused:
        parse(ModelReadyRequest, octets)
    assert "toutates" not in str(refused.value)
