"""Names of this machine that web pages may be of, in a process whose names the test makes up."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.models import add_model, versioned_model
from tests.e2e.test_web_pages import JSON, asked
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.system.address import Address


@pytest.fixture
def models(tmp_path: Path) -> Path:
    add_model(tmp_path, "first", versioned_model(1), 1)
    return tmp_path


def test_the_machines_name_with_its_domain_is_looked_up_beside_requests(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, may_be_known = socket.getaddrinfo, threading.Event()

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "box":
            return look_up(host, *arguments, **options)
        assert may_be_known.wait(120)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "Box.lab.example.", ("10.0.0.1", 0))]

    def visit(inside: Inside) -> None:
        assert inside.server.rest_address is not None
        port = inside.server.rest_address[1]

        def status(host: str) -> int:
            return asked(port, "/v2/logging", host, f"Origin: http://{host}", JSON).status

        assert (status("box"), status("box.lab.example")) == (200, 403)
        may_be_known.set()
        wait_until(lambda: status("box.lab.example") == 200)
        assert status("lab.example") == 403

    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert serve(models, visit, http_addr=Address("127.0.0.1", 0)) == 0
