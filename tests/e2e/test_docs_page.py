"""/docs in a real browser, of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.http import get, peer_of
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.observe.status.chromium import Tab, browser

pytestmark = pytest.mark.long

HTTP = ("--http-addr", "127.0.0.1:0")
#: A name that would be a script, were it taken for HTML or Markdown.
ODD = "<img src=x onerror=window.ran=1>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    add_model(models, "versions", versioned_model(1))
    add_model(models, ODD, versioned_model(2))
    with running(models, tmp_path_factory.mktemp("server"), HTTP) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        tab.open()
        tab.look(1240, 900)
        yield tab


def try_out(tab: Tab, path: str, added: int) -> None:
    """Send the example of a path, and look whether the page shows the answer."""
    block = f"document.querySelector('[data-path={json.dumps(path)}]').closest('.opblock')"
    tab.evaluate(f"{block}.querySelector('.opblock-summary-control').click()")
    tab.wait_for(lambda: tab.evaluate(f"!!{block}.querySelector('button.execute')"))
    assert "INPUT" in tab.evaluate(f"{block}.querySelector('textarea').value")
    tab.evaluate(f"{block}.querySelector('button.execute').click()")
    answer = f"({block}.querySelector('.live-responses-table .response') || {{innerText: ''}}).innerText"
    text = tab.wait_for(lambda: tab.evaluate(answer))
    assert text.split()[0] == "200"
    assert json.dumps([added] * 4).replace(" ", "") in "".join(text.split())


def test_it_shows_every_route_and_tries_them_out(tab: Tab, server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        document = peer.ask(get("/openapi.json")).document
    tab.go(f"http://127.0.0.1:{server.rest_port}/docs")
    tab.wait_for(lambda: tab.evaluate("document.querySelectorAll('.opblock').length"))
    paths = tab.evaluate("[...document.querySelectorAll('.opblock-summary-path')].map(e => e.dataset.path)")
    assert set(paths) == set(document["paths"])

    for name, added in (("versions", 1), (ODD, 2)):
        items = document["paths"].items()
        path = next(path for path, item in items if item.get("post", {}).get("summary") == f"Run {name}")
        try_out(tab, path, added)
    assert tab.evaluate("window.ran") is None

    entries = tab.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    start = f"http://127.0.0.1:{server.rest_port}/"
    assert f"{start}openapi.json" in entries
    assert [name for name in entries if not name.startswith((start, "data:"))] == []
    assert tab.complaints == []


def test_it_runs_nothing_of_others(tab: Tab, server: ServerProcess) -> None:
    tab.go(f"http://127.0.0.1:{server.rest_port}/docs")
    tab.wait_for(lambda: tab.evaluate("document.querySelectorAll('.opblock').length"))
    tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert tab.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in tab.complaints)


@pytest.mark.quick
def test_its_files_are_asked_for_once(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        for path, media_type in (
            ("/docs", "text/html"),
            ("/docs/swagger-ui.css", "text/css"),
            ("/docs/swagger-ui-bundle.js", "text/javascript"),
        ):
            answer = peer.ask(get(path))
            assert (answer.status, answer.fields["content-type"]) == (200, f"{media_type}; charset=utf-8")
            assert answer.fields["x-content-type-options"] == "nosniff"
            assert peer.ask(get(path, f"If-None-Match: {answer.fields['etag']}")).status == 304
        for path in ("/docs/", "/docs/index.html", "/docs/../openapi.json", "/docs/%2e%2e/openapi.json"):
            assert peer.ask(get(path)).status == 404


def test_without_swagger_ui_it_says_what_to_install(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_model(models, "versions", versioned_model(1))
    # As if the package were not there: nothing can be imported of this name.
    script = "import sys; sys.modules['flask_swagger_ui'] = None; from toutates.__main__ import main; sys.exit(main())"
    with running(models, tmp_path, HTTP, start=["-c", script]) as server, peer_of(server.rest_port) as peer:
        answer = peer.ask(get("/docs"))
        assert answer.status == 404
        assert "pip install 'toutates[docs]'" in answer.document["error"]
        assert peer.ask(get("/docs/swagger-ui.css")).status == 404
        assert peer.ask(get("/openapi.json")).status == 200
