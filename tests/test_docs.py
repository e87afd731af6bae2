"""The pages of docs and the README: links lead somewhere, the index has every page, figures agree between pages."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from docs import follow
from toutates.observe.http.cpu_budget import SHARE

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    broken = []
    for match in _LINK.finditer(_CODE.sub("", page.read_text())):
        target = match[1] or match[2]
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
            broken.append(target)
    assert not broken


def test_the_index_has_every_page_with_what_it_is_for() -> None:
    index = (DOCS / "README.md").read_text()
    rows = dict(re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\) \| (.+) \|$", index, re.MULTILINE))
    assert set(rows) - {"../README.md"} == {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert all(len(text) > 20 for text in rows.values())
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()


def test_the_site_shows_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    shown = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    wanted = {"README.md", "CHANGELOG.md", *(f"docs/{page.name}" for page in DOCS.glob("*.md"))}
    assert sorted(shown) == sorted(wanted)


def test_a_quick_start_is_held_to_what_it_says(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```sh\necho one two\necho three\n```\n```text\n...\n"two"\n```\n')
    with pytest.raises(follow.WrongPage, match="printed:\none two"):
        follow.follow(page)
    page.write_text(page.read_text().replace('"two"\n', "three\n"))
    follow.follow(page)
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(follow.WrongPage, match="status 1"):
        follow.follow(page)


def test_a_quick_start_takes_other_ports_where_its_own_are_taken() -> None:
    with socket.create_server(("", 0)) as listener, socket.create_server(("", 0)) as free:
        taken, unused = listener.getsockname()[1], free.getsockname()[1]
        free.close()
        others = follow.taken_ports([taken, unused])
    assert list(others) == [taken]
    assert others[taken] not in (taken, unused)
    assert follow.taken_ports([unused]) == {}
    ports = {8000: 18000, 8002: 18002}
    for command, served in (
        ("toutates --model-repository models", "toutates --model-repository models --http-addr=0.0.0.0:18000"),
        ("tritonserver --model-store=m", "tritonserver --model-store=m --http-port=18000 --metrics-port=18002"),
    ):
        step = follow.Step("sh", f"{follow.SERVER}env/bin/{command}\n")
        assert follow.moved(step, {}) is step
        assert follow.moved(step, ports).text == f"{follow.SERVER}env/bin/{served}\n"
    asked = follow.Step("sh", "curl localhost:8000/v2 localhost:8001\n")
    assert follow.moved(asked, ports).text == "curl localhost:18000/v2 localhost:8001\n"
    with pytest.raises(follow.WrongPage, match="none of toutates"):
        follow.moved(follow.Step("sh", f"{follow.SERVER}python -m http.server\n"), ports)


def test_the_ports_of_the_quick_starts_are_known() -> None:
    for page in DOCS.glob("quickstart-*.md"):
        for step in follow.steps(page.read_text()):
            if step.text.startswith(follow.SERVER):
                known = follow.PORTS[step.text.removeprefix(follow.SERVER).split()[0].removeprefix("env/bin/")]
            for port in re.findall(r"localhost:(\d+)", step.text):
                assert int(port) in known, f"{page.name}: {port}"


def test_the_quick_starts_have_steps_that_can_be_followed() -> None:
    pages = sorted(DOCS.glob("quickstart-*.md"))
    assert len(pages) == 5
    for page in pages:
        steps = follow.steps(page.read_text())
        assert steps[0].text.startswith("git clone <this repository> toutates\n")
        assert sum(step.text.startswith(follow.SERVER) for step in steps) == 1
        assert steps[-1].kind in ("text", "sh")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("docs/")])
def test_a_page_opens_with_what_it_is_for_and_a_command(name: str) -> None:
    title, _, rest = (ROOT / name).read_text().partition("\n\n")
    assert title.startswith("# ")
    paragraph, _, _ = rest.partition("\n\n")
    assert not paragraph.startswith(("#", "|", "```", "    ")), "a sentence comes first"
    opening = "\n".join(rest.splitlines()[:16])
    assert re.search(r"^(```|    \S)|`(make|python|toutates|GET|docker)[ a-z]", opening, re.MULTILINE), "and a command"


def test_no_page_installs_what_no_registry_has() -> None:
    for page in PAGES:
        for line in page.read_text().splitlines():
            if "pip install" in line:
                assert not re.search(r"install (-\S+ )*['\"]?toutates", line), f"{page.name}: {line}"


def test_the_readme_says_what_the_benchmarks_measured() -> None:
    """Under load: all loads of h2load but the one with one request at a time. The ends are rounded."""
    readme = (ROOT / "README.md").read_text()
    table = (DOCS / "measurements.md").read_text().partition("CPU of the server per request, µs:")[2]

    def measured(server: str) -> list[float]:
        row = re.search(rf"^\| {re.escape(server)} \| (.+) \|$", table, re.MULTILINE)
        assert row is not None
        return [float(cell.split()[0]) for cell in row[1].split(" | ")[:4]]

    claim = re.search(
        r"cost it ([\d.]+) to ([\d.]+) µs.*?`grpc\.aio`\s+server takes ([\d.]+) to ([\d.]+)", readme, re.S
    )
    assert claim is not None
    low, high, other_low, other_high = map(float, claim.groups())
    assert low == pytest.approx(min(measured("toutates")), rel=0.1)
    assert high == pytest.approx(max(measured("toutates")), rel=0.1)
    assert other_low == pytest.approx(min(measured("grpc.aio")), rel=0.1)
    assert other_high == pytest.approx(max(measured("grpc.aio")), rel=0.1)


def test_the_benchmarks_are_those_that_were_measured() -> None:
    names = {
        "**Toutates**": "toutates",
        "Toutates, CPython 3.14t": "toutates-3.14t",
        "Triton 24.10": "triton",
        "a server on `grpc.aio`, as a team would write it": "grpc.aio",
        "MLServer": "mlserver",
        "a C++ file server that sends as many bytes: the limit": "nghttpd",
    }
    table = (DOCS / "measurements.md").read_text().partition("CPU of the server per request, µs:")[2]
    for shown, server in names.items():
        row = re.search(rf"^\| {re.escape(shown)} \| (.+) \|$", (DOCS / "benchmarks.md").read_text(), re.MULTILINE)
        measured = re.search(rf"^\| {re.escape(server)} \| (.+) \|$", table, re.MULTILINE)
        assert row is not None
        assert measured is not None
        cells = measured[1].split(" | ")
        for cell, at in zip(row[1].split(" | "), (0, 1, 3, 6), strict=False):
            if shows := cell.strip(" |*"):
                assert float(shows) == pytest.approx(float(cells[at].split()[0]), rel=0.01), shown


def test_pages_agree_on_what_the_http_side_may_use() -> None:
    assert SHARE == 0.1
    for name in ("docs/architecture.md", "docs/monitoring.md", "docs/measurements.md", "CHANGELOG.md"):
        assert re.search(r"a\s+fifth\s+of\s+a\s+CPU", (ROOT / name).read_text()), name
