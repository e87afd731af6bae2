"""The status page in a real browser, of a real server under real load."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.models import add_model, build_repository, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.ensembles import MODELS, add_ensemble, add_graph, pbtxt, step
from tests.observe.status.chromium import Tab, browser
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.long

triton = pytest.importorskip("tritonclient.grpc")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    build_repository(root)
    return root


def http_port(server: ServerProcess) -> int:
    line = next(line for line in server.log.splitlines() if "status page on " in line)
    return int(line.partition("status page on http://127.0.0.1:")[2].partition("/")[0])


@contextmanager
def served(repository: Path, folder: Path, http: int = 0) -> Iterator[tuple[ServerProcess, int]]:
    folder.mkdir()
    with running(repository, folder, ["--metrics-addr", f"127.0.0.1:{http}"]) as server:
        yield server, http_port(server)


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, int]]:
    with served(repository, tmp_path_factory.mktemp("server") / "run") as both:
        yield both
        assert both[0].stop() == 0
        assert "Traceback" not in both[0].log


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(chromium: Tab) -> Tab:
    """A new tab."""
    chromium.open()
    chromium.look(1240, 900)
    return chromium


@contextmanager
def load(address: str, pause_s: float = 0.02) -> Iterator[None]:
    """Requests that are answered, and some that fail, for the block."""
    stop = threading.Event()

    def ask() -> None:
        with triton.InferenceServerClient(address) as client:
            number = 0
            while not stop.is_set():
                number += 1
                rows = 1 + number % 3
                tensor = triton.InferInput("INPUT", [rows, 64], "FP32")
                tensor.set_data_from_numpy(np.ones((rows, 64), np.float32))
                try:
                    client.infer("mlp" if number % 10 else "there_is_no_such_model", [tensor])
                except triton.InferenceServerException:
                    assert number % 10 == 0
                stop.wait(pause_s)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def number(text: str) -> float:
    scale = {"k": 1e3, "M": 1e6}.get(text[-1:], 1.0)
    return float(text.strip("kM").replace(",", "")) * scale


def test_the_numbers_move_with_the_load(tab: Tab, server: tuple[ServerProcess, int]) -> None:
    process, port = server
    tab.go(f"http://127.0.0.1:{port}/")
    tab.wait_for(lambda: tab.text("#state") == "Ready")
    assert tab.text("#requests") == "0"
    assert tab.text("#errors li") == ""
    with load(process.address):
        tab.wait_for(lambda: number(tab.text("#requests")) > 5)
        tab.wait_for(lambda: number(tab.text("#failures")) > 0.5)
        tab.wait_for(lambda: tab.text("#p99").endswith(("s", "µs")))
        tab.wait_for(lambda: tab.evaluate("document.querySelectorAll('#b-batches > div').length") >= 1)
        drawn = "document.querySelector('#c-requests .flow').getAttribute('d')"
        before = tab.evaluate(drawn)
        tab.wait_for(lambda: tab.evaluate(drawn) != before)
        assert "unknown model" in tab.text("#errors")
        assert "worker-0" in tab.text("#workers")
        row = "[...document.querySelectorAll('#models li')].find(li => li.querySelector('b').textContent === 'mlp')"
        assert number(tab.evaluate(f"{row}.querySelector('.rate').firstChild.textContent")) > 1
        assert "p99" in tab.evaluate(f"{row}.querySelector('.facts').textContent")
        place = f"triton (Toutates) on {socket.gethostname()}:{port}"
        assert tab.evaluate("document.title").endswith(place)
        assert tab.text("#server") == place
        assert "of memory" in tab.text("#process")
        assert "in INPUT FP32 [64]" in tab.evaluate(f"{row}.querySelector('.tensors p').textContent")
        for button, unit in enumerate((" s ago", " ago", " min ago")):
            tab.evaluate(f"document.querySelectorAll('#range button')[{button}].click()")
            assert tab.text(".since").endswith(unit)
    tab.wait_for(lambda: tab.text("#requests") == "0")
    assert not tab.complaints


@pytest.mark.quick
def test_it_needs_nothing_but_the_server_and_runs_nothing_of_others(
    tab: Tab, server: tuple[ServerProcess, int]
) -> None:
    _, port = server
    tab.go(f"http://127.0.0.1:{port}/")
    tab.wait_for(lambda: tab.text("#state") == "Ready")
    names = "performance.getEntriesByType('resource').map(entry => new URL(entry.name).pathname)"
    assert set(tab.evaluate(names)) == {"/status.json"}
    tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert tab.evaluate("window.ran") is None
    refused = [complaint for complaint in tab.complaints if "Content Security Policy" in complaint]
    assert refused


def test_names_and_reasons_are_text_whatever_they_contain(tab: Tab, repository: Path, tmp_path: Path) -> None:
    name = "<img src=x onerror=window.ran=1>"
    hostile = tmp_path / "models"
    hostile.mkdir()
    (hostile / "mlp").symlink_to(repository / "mlp")
    (hostile / name / "1").mkdir(parents=True)
    (hostile / name / "1" / "model.onnx").write_bytes(b"no model")
    with served(hostile, tmp_path / "run") as (_, port):
        tab.go(f"http://127.0.0.1:{port}/")
        tab.wait_for(lambda: tab.text("#state") == "Not ready")
        assert tab.text("#models .name b") == name
        assert tab.evaluate("document.querySelectorAll('img').length") == 0
        assert tab.evaluate("window.ran") is None
        assert not tab.complaints


def test_an_ensemble_shows_the_picture_of_its_graph_when_it_is_opened(tab: Tab, tmp_path: Path) -> None:
    root = tmp_path / "models"
    add_graph(root, "double", MODELS["double"])
    add_ensemble(root, "pipe", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], [step("double", "x=IN", "y=OUT")]))
    with served(root, tmp_path / "run") as (_, port):
        tab.go(f"http://127.0.0.1:{port}/")
        tab.wait_for(lambda: tab.text("#state") == "Ready")
        assert tab.evaluate("document.querySelectorAll('img').length") == 0
        tab.evaluate("document.querySelectorAll('#models details').forEach(one => one.open = true)")
        tab.wait_for(lambda: tab.evaluate("document.querySelector('img.graph')?.naturalWidth > 100"))
        assert tab.evaluate("document.querySelectorAll('img').length") == 1
        assert not tab.complaints


def test_a_server_that_goes_and_comes_back_is_noticed(tab: Tab, repository: Path, tmp_path: Path) -> None:
    with served(repository, tmp_path / "first", free_port()) as (server, port):
        tab.go(f"http://127.0.0.1:{port}/")
        tab.wait_for(lambda: tab.text("#state") == "Ready")
        server.stop(signal.SIGKILL)
        tab.wait_for(lambda: tab.text("#state").startswith("No answer"))
        assert tab.evaluate("document.querySelector('main').className") == "stale"
    with served(repository, tmp_path / "second", port):
        tab.wait_for(lambda: tab.text("#state") == "Ready, restarted just now")
        assert tab.evaluate("document.querySelector('main').className") == ""


def test_a_page_that_nobody_looks_at_asks_nothing(tab: Tab, server: tuple[ServerProcess, int]) -> None:
    _, port = server
    tab.go(f"http://127.0.0.1:{port}/")
    tab.wait_for(lambda: tab.text("#state") == "Ready")

    def asked() -> int:
        return int(tab.evaluate("window.asked"))

    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});" + (
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    tab.evaluate(
        "window.asked = 0; const fetched = window.fetch; window.fetch = (...how) => (window.asked++, fetched(...how))"
    )
    # Time runs faster in the page, which otherwise asks once a second.
    tab.evaluate("const wait = window.setTimeout; window.setTimeout = (f, ms) => wait(f, ms < 8000 ? ms / 20 : ms)")
    tab.wait_for(lambda: asked() > 2)
    tab.evaluate(hide.format("true"))
    count = asked()
    time.sleep(0.5)
    assert asked() == count
    tab.evaluate(hide.format("false"))
    tab.wait_for(lambda: asked() > count + 1)


#: How often the heap of a page is measured that is open for long.
MEASUREMENTS: Final = 6

#: A server that answers at once and differently each time, in the page itself: names come and go, histories go on,
#: warnings and errors change. Only the first answer is real.
A_LONG_DAY: Final = """
(() => {
  const ask = window.fetch, wait = window.setTimeout;
  let first = null;
  window.polls = 0;
  window.setTimeout = (f, ms, ...more) => wait(f, ms >= 8000 ? ms : 0, ...more);
  window.fetch = async (...how) => {
    first ??= await (await ask(...how)).json();
    while (window.rest) {
      window.resting = true;
      await new Promise(done => wait(done, 10));
    }
    window.resting = false;
    const s = structuredClone(first);
    s.sequence += window.polls++;
    const n = window.still ? 7 : window.polls;
    const points = how[0].includes("recent") ? 10 : s.history_size;
    const some = (count, make) => Array.from({length: count}, (_, i) => make(i));
    for (const name in s.history) s.history[name] = some(points, () => Math.random() * 1000 * (1 + n % 7));
    for (const name in s.history) s.long_history[name] = some(points, () => Math.random() * 1000);
    s.versions = some(5 + n % 20, i => ({...first.versions[0], model: `model-${(n >> 5) + i}`,
      history: some(10, () => Math.random() * 100), batches: some(1 + n % 8, k => [1 << k, n])}));
    s.latency = some(1 + n % 20, k => [0.05 * 2 ** k, n % (k + 3)]);
    s.batches = some(1 + n % 12, k => [1 << k, n % (k + 5)]);
    s.warnings = some(n % 20, i => ({time_s: n + i, level: i % 2 ? "warning" : "error", area: "server",
      text: `warning ${n} of ${i}`}));
    s.errors = some(n % 9, i => ({kind: `kind ${i}`, count: n + i, per_s: i}));
    return {ok: true, json: async () => s};
  };
})()
"""


@pytest.mark.parametrize(
    "is_measured",
    [pytest.param(False, marks=pytest.mark.long, id="nodes"), pytest.param(True, marks=pytest.mark.alone, id="memory")],
)
@pytest.mark.timeout(0 if "TOUTATES_PAGE_HOURS" in os.environ else 600)
def test_a_page_that_is_open_for_hours_grows_by_nothing(
    tab: Tab, server: tuple[ServerProcess, int], is_measured: bool
) -> None:
    _, port = server
    hours = float(os.environ.get("TOUTATES_PAGE_HOURS", "0.15"))
    tab.command("Page.addScriptToEvaluateOnNewDocument", source=A_LONG_DAY)
    tab.look(320, 240)  # to draw a large window takes as long as all the rest
    tab.go(f"http://127.0.0.1:{port}/")

    def after(polls: int) -> tuple[int, int]:
        tab.wait_for(lambda: tab.evaluate("window.polls") >= polls, 60 + polls / 10)
        tab.evaluate("window.still = true")  # what is measured is the same page each time
        now = tab.evaluate("window.polls")
        tab.wait_for(lambda: tab.evaluate("window.polls") > now + 60)
        # And no answer under way, which would be most of the heap.
        tab.evaluate("window.rest = true")
        tab.wait_for(lambda: tab.evaluate("window.resting"))
        found = tab.heap_and_nodes()
        tab.evaluate("window.rest = window.still = false")
        return found

    # The engine compiles code now and then, which moves the heap a bit. What is kept of each poll makes it grow from
    # each measurement to the next.
    polls = int(hours * 3_600) // MEASUREMENTS
    measured = [after(400 + at * polls) for at in range(MEASUREMENTS)]
    growths = [(then[0] - before[0]) / polls for before, then in itertools.pairwise(measured)]
    assert not is_measured or statistics.median(growths) < 100, f"bytes per poll: {growths}"
    early, late = measured[: MEASUREMENTS // 2], measured[MEASUREMENTS // 2 :]
    assert min(nodes for _, nodes in late) < min(nodes for _, nodes in early) + 10


@pytest.mark.parametrize(
    "is_measured",
    [pytest.param(False, marks=pytest.mark.long, id="files"), pytest.param(True, marks=pytest.mark.alone, id="memory")],
)
def test_a_day_of_polls_leaves_nothing_in_the_server(server: tuple[ServerProcess, int], is_measured: bool) -> None:
    process, port = server
    status = Path(f"/proc/{process.process.pid}/status")

    def resident() -> int:
        return int(status.read_text().partition("VmRSS:")[2].split()[0]) * 1024

    def poll(times: int) -> None:
        with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            for count in range(times):
                path = ("/status.json?history=recent", "/", "/health/live", f"/no/{count}", "/status.json")[count % 5]
                connection.request("GET", path)
                connection.getresponse().read()

    poll(500)
    before, files = resident(), process.open_files()
    poll(900)
    assert not is_measured or resident() < before + 3_000_000  # 3.4 kB per request would be as many
    wait_until(lambda: process.open_files() <= files + 3)


#: A page with everything that is long, many or hostile, as the server could say it.
TOO_MUCH: Final = """
(() => {
  const ask = window.fetch;
  window.fetch = async (...how) => {
    const s = await (await ask(...how)).json();
    const html = "<img src=x onerror='window.ran=1'><b>";
    const some = (count, make) => Array.from({length: count}, (_, i) => make(i));
    const ready = s.versions.find(v => v.history);
    const name = "model-with-a-name-without-end-".repeat(8);
    s.versions = some(200, i => ({...ready, model: i % 3 ? `${name}${i}` : html + i, version: String(i ** 5),
      batches: some(20, k => [2 ** k, i * k]), requests_per_s: 12345678, p50_ms: 123456, p99_ms: 1234567,
      waiting: 123456789, in_flight: 123456, capacity: 1234567, success: 1e12, failed: 1e11,
      inputs: some(16, k => `${"a_tensor_of_a_graph".repeat(5)}${k} FP32 [${some(12, () => -1)}]`),
      outputs: [html]}));
    s.versions.unshift({model: html, version: "", state: "UNAVAILABLE", reason: (html + "x".repeat(300))});
    s.versions.unshift({model: name, version: "3", state: "LOADING", reason: ""});
    s.latency = some(30, k => [0.05 * 2 ** k, k + 1]);
    s.batches = some(20, k => [2 ** k, k + 1]);
    s.warnings = some(20, i => ({time_s: i, level: "error", area: "server", text: html + "/x".repeat(190)}));
    s.errors = some(9, i => ({kind: `kind ${i}`, count: 123456789012, per_s: 123456789}));
    s.limits = some(30, i => ({name: "max_connection_buffered_bytes", count: 123456789012}));
    s.workers = some(64, i => ({name: `worker-${i}`, load: 12.5, late_ms: 123456, connections: 1, open_calls: 1}));
    s.server.host = "a-host-with-a-long-name-in-a-cluster".repeat(2);
    s.server.name = html; s.server.interpreter = "CPython 3.14.0 free-threading build".repeat(2);
    Object.assign(s.now, {requests_per_s: 123456789, failures_per_s: 12345678, p99_ms: 123456, waiting: 123456789,
      executors: 123456, busy: 12345.67, capacity: 123456789, in_flight: 12345678, mean_batch: 1234567,
      received_per_s: 1e12, sent_per_s: 1e12, connections: 1234567, open_calls: 12345678, memory_bytes: 1e12});
    return {ok: true, json: async () => s};
  };
})()
"""
#: What is wider than the card it is in, but for what scrolls within itself.
STICKS_OUT: Final = """
[...document.querySelectorAll('section, header, footer')].flatMap(card => {
  const edge = card.getBoundingClientRect();
  const bad = [...card.querySelectorAll('*')].filter(e => !e.closest('svg') && e.offsetParent !== null
    && (e.getBoundingClientRect().right > edge.right + 0.5 || e.getBoundingClientRect().left < edge.left - 0.5));
  return (card.scrollWidth > card.clientWidth ? [card] : []).concat(bad);
}).map(e => `${e.tagName} ${e.id} ${e.className} ${e.textContent.slice(0, 40)}`)
"""


def test_nothing_sticks_out_of_its_card_at_any_width(tab: Tab, server: tuple[ServerProcess, int]) -> None:
    _, port = server
    tab.command("Page.addScriptToEvaluateOnNewDocument", source=TOO_MUCH)
    tab.go(f"http://127.0.0.1:{port}/")
    tab.wait_for(lambda: tab.text("#state") == "Ready")
    tab.wait_for(lambda: tab.evaluate("document.querySelectorAll('#models li').length") == 202)
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for width in (320, 375, 768, 1024, 1440, 1920):
        tab.look(width, 900, phone=width < 500)
        assert tab.evaluate(STICKS_OUT) == [], width
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.querySelectorAll('main img').length") == 0
    assert tab.evaluate("window.ran") is None


def test_a_model_without_versions_reads_well(tab: Tab, repository: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    (root / "empty").mkdir(parents=True)
    (root / "empty" / "config.pbtxt").write_text('backend: "onnxruntime"')
    (root / "mlp").symlink_to(repository / "mlp")
    with served(root, tmp_path / "run") as (_, port):
        tab.go(f"http://127.0.0.1:{port}/")
        tab.wait_for(lambda: tab.text("#state") == "Not ready")
        assert tab.text("#models .name") == "emptyno version"  # two elements with a gap between them
        assert len(tab.text("#models .facts")) > 10
        assert tab.text("#model-count") == "1 of 1 version ready, 1 model without a version"


@pytest.mark.parametrize(("size", "dark"), [((1240, 900), False), ((390, 844), True), ((320, 568), False)])
def test_it_fits_its_window(tab: Tab, server: tuple[ServerProcess, int], size: tuple[int, int], dark: bool) -> None:
    _, port = server
    tab.look(*size, dark=dark, phone=dark)
    tab.go(f"http://127.0.0.1:{port}/")
    tab.wait_for(lambda: tab.text("#state") == "Ready")
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    colours: Any = tab.evaluate(
        "getComputedStyle(document.body).color + getComputedStyle(document.documentElement).backgroundColor"
    )
    assert ("rgb(231, 234, 236)" in colours) is dark
    assert not tab.evaluate("document.querySelector('#demand-section').checkVisibility()"), "without that mode"


def test_models_on_demand_show_what_is_in_memory(tab: Tab, tmp_path: Path) -> None:
    root = tmp_path / "models"
    for number in range(8):
        add_model(root, f"m{number}", versioned_model(number), 1)
    (tmp_path / "run").mkdir()
    flags = ("--model-control-mode", "on-demand", "--model-memory", "500K", "--model-min-stay", "0")
    with running(root, tmp_path / "run", [*flags, "--metrics-addr", "127.0.0.1:0"]) as server:
        tab.go(f"http://127.0.0.1:{http_port(server)}/")
        tab.wait_for(lambda: tab.text("#demand-models") == "0of 8 models in memory")  # a gap is between them
        with triton.InferenceServerClient(server.address) as client:
            for name in ("m0", "m0", "m1", "m2", "m3"):
                tensor = triton.InferInput("INPUT", [1, 4], "INT32")
                client.infer(name, [tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))])
        tab.wait_for(lambda: tab.text("#demand-requests") == "1 request found the model in memory, 4 waited for it")
        tab.wait_for(lambda: "4 loads" in tab.text("#demand-loads"))
        tab.wait_for(lambda: tab.text("#demand-models").endswith("of 8 models in memory"))
        assert 1 <= number_of(tab.text("#demand-models")) <= 3
        assert tab.text("#demand-memory").endswith(" of 512 kB")
        assert "left for others" in tab.text("#demand-loads")
        assert server.stop() == 0


def number_of(text: str) -> int:
    return int(text.partition("of")[0])


def test_models_are_found_sorted_and_paged(tab: Tab, tmp_path: Path) -> None:
    """Of more models than the page lists at once."""
    root = tmp_path / "models"
    model = versioned_model(1)
    for number in range(210):
        add_model(root, f"city-{number:03d}", model, 1)
    add_model(root, "Broken", b"no graph", 1)
    with served(root, tmp_path / "run") as (_, port):
        tab.go(f"http://127.0.0.1:{port}/")
        rows = "document.querySelectorAll('#models > li').length"
        first = "document.querySelector('#models > li .name b')?.textContent"
        tab.wait_for(lambda: tab.evaluate(rows) == 200 and tab.evaluate(first) == "Broken")
        assert tab.text("#page") == "1 of 2"
        tab.evaluate("document.querySelector('#next').click()")
        tab.wait_for(lambda: tab.evaluate(rows) == 11)
        find = "const f = document.querySelector('#find'); f.value = {!r}; f.dispatchEvent(new Event('input'))"
        tab.evaluate("{ " + find.format("CITY-20") + " }")
        tab.wait_for(lambda: tab.evaluate(rows) == 10 and tab.evaluate(first) == "city-200")
        assert not tab.evaluate("document.querySelector('#paging').checkVisibility()")
        tab.evaluate("{ " + find.format("") + " }")
        tab.evaluate("document.querySelector('#by-name').click()")
        tab.wait_for(lambda: tab.evaluate(rows) == 200)
        for query, status in (
            ("find=x&page=999", 200),
            ("page=-1", 400),
            ("sort=size", 400),
            ("page=1" + "0" * 9, 400),
        ):
            with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
                connection.request("GET", f"/status.json?{query}")
                assert connection.getresponse().status == status
