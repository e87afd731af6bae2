"""LogSettings as tritonclient sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import running
from tests.e2e.support import SERVICE, channel_to, grpc, pb, refused, triton

DEFAULTS: dict[str, Any] = {
    "log_file": {"string_param": ""},
    "log_info": {"bool_param": True},
    "log_warning": {"bool_param": True},
    "log_error": {"bool_param": True},
    "log_verbose_level": {"uint32_param": 0},
    "log_format": {"string_param": "default"},
}


def test_settings_are_read_and_changed(repository: Path, tmp_path: Path) -> None:
    with (
        running(repository, tmp_path, ["--load-models", "slow"]) as process,
        triton.InferenceServerClient(process.address) as client,
    ):
        assert "logging" in client.get_server_metadata().extensions
        assert client.get_log_settings(as_json=True)["settings"] == DEFAULTS
        changed = client.update_log_settings(
            {"log_verbose_level": 2, "log_format": "ISO8601", "log_level.h2grpc": True, "unknown": True}, as_json=True
        )["settings"]
        expected = {
            **DEFAULTS,
            "log_verbose_level": {"uint32_param": 2},
            "log_format": {"string_param": "ISO8601"},
            "log_level.h2grpc": {"string_param": "debug"},
        }
        assert changed == expected
        for settings, status, text in (
            ({"log_file": "/tmp/x"}, "UNIMPLEMENTED", "log file location can not be updated through network protocol"),
            ({"log_info": None}, "INVALID_ARGUMENT", "expect boolean for 'log_info'"),
            ({"log_format": "x"}, "INVALID_ARGUMENT", "invalid argument for log_format, got: x"),
        ):
            with pytest.raises(triton.InferenceServerException) as raised:
                client.update_log_settings(settings)
            assert (raised.value.status(), raised.value.message()) == (f"StatusCode.{status}", text)
        assert client.get_log_settings(as_json=True)["settings"] == expected
        client.update_log_settings({"log_verbose_level": 0, "log_format": "default", "log_level.h2grpc": False})
        assert client.get_log_settings(as_json=True)["settings"] == DEFAULTS
        assert process.stop() == 0


def test_a_message_that_is_none_is_refused(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "slow"]) as process, channel_to(process.address) as channel:
        assert refused(channel, b"\xff", SERVICE + "LogSettings")[0] == "INTERNAL"


def test_restricted_to_those_who_know_the_secret(repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "slow", "--grpc-restricted-protocol", "logging:admin=s3cret"]
    with (
        running(repository, tmp_path, flags) as process,
        triton.InferenceServerClient(process.address) as client,
        channel_to(process.address) as channel,
    ):
        message = pb.LogSettingsRequest()
        message.settings["log_info"].bool_param = False
        status, text = refused(channel, message, SERVICE + "LogSettings")
        assert status == grpc.StatusCode.UNAVAILABLE.name
        assert "expecting header 'triton-grpc-protocol-admin'" in text
        headers = {"triton-grpc-protocol-admin": "s3cret"}
        assert client.get_log_settings(headers=headers, as_json=True)["settings"] == DEFAULTS
        assert process.stop() == 0
        assert "s3cret" not in process.log
