"""Which names a browser may have asked for, where it changes the server for a page."""

from __future__ import annotations

import pytest

from toutates.access.pages import WebPages
from toutates.system.errors import Forbidden

PAGES = WebPages(["https://app.example:444", "*"], ["proxy.example"], lambda: ("Models.example", "*.cluster.example"))
PAGES.add_name("box.lab.example")
PAGES.add_name("")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("models.example:8000", True),
        ("MODELS.example.", True),
        ("a.cluster.example", True),
        ("cluster.example", False),
        ("a.b.cluster.example", False),
        ("app.example", True),
        ("box.lab.example", True),
        ("lab.example", False),
        ("proxy.example:1", True),
        ("10.1.2.3:8000", True),
        ("[fe80::1]:8000", True),
        ("[fe80::1", False),
        ("10.1.2.3.evil.example", False),
        ("", False),
    ],
)
def test_a_page_changes_the_server_by_its_own_names_alone(host: str, is_ours: bool) -> None:
    fields = {"host": host, "origin": f"https://{host.lower()}", "sec-fetch-site": "same-origin"}
    if is_ours:
        PAGES.check_change(fields)
    else:
        with pytest.raises(Forbidden):
            PAGES.check_change(fields)


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        ("http://localhost", "localhost:80", True),
        ("https://localhost", "localhost:443", True),
        ("https://localhost", "localhost:80", False),
        ("http://localhost:8000", "localhost", False),
        ("null", "null", False),
        ("http://", "", False),
        ("", "localhost", False),
    ],
)
def test_an_origin_is_where_the_request_is_sent_to(origin: str, host: str, is_own: bool) -> None:
    if is_own:
        PAGES.check_change({"host": host, "origin": origin})
    else:
        with pytest.raises(Forbidden, match="--cors-origin"):
            PAGES.check_change({"host": host, "origin": origin})
