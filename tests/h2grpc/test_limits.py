from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from toutates.h2grpc import Limits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrent_streams", 0),
        ("max_frame_size", 16_383),
        ("max_frame_size", 2**24),
        ("stream_window", 65_534),
        ("stream_window", 2**31),
        ("connection_window", 65_534),
        ("max_concurrent_streams", 2**31),
        ("connection_window", 2**31),
        ("max_message_size", 0),
        ("max_message_size", 2**31),
        ("max_decompressed_size", 2**31),
        ("max_buffered_bytes", 2**63),
        ("max_queued_bytes", 2**63),
        ("max_unsent_bytes", 2**63),
        ("max_header_list_size", 0),
        ("max_header_block_size", 0),
        ("max_continuations", -1),
        ("header_memory_entries", 0),
        ("closed_stream_memory", 0),
        ("max_preface_bytes", 23),
        ("max_queued_bytes", 0),
        ("max_unsent_bytes", -1),
        ("max_decompressed_size", 0),
        ("max_buffered_bytes", 0),
        ("max_messages", 0),
        ("max_settings", 0),
        ("handshake_timeout_s", 0),
        ("stall_timeout_s", 0),
        ("max_idle_s", 0),
        ("max_age_s", 0),
        ("max_age_grace_s", -1),
        ("keepalive_time_s", 0),
        ("keepalive_timeout_s", 0),
    ],
)
def test_limits_refuse_what_makes_no_sense(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, must lie in"):
        Limits(**{name: value})  # type: ignore[arg-type]  # one of the fields that are numbers


def test_every_limit_has_its_reason_and_a_test_in_which_it_matters() -> None:
    tests = Path(__file__).parent.parent
    paths = [*tests.glob("h2grpc/test_*.py"), *tests.glob("net/test_*.py")]
    texts = "".join(path.read_text() for path in paths if path.name != "test_limits.py")
    for field in fields(Limits):
        assert f"    {field.name}: " in (Limits.__doc__ or "")
        assert f"{field.name}=" in texts, field.name
