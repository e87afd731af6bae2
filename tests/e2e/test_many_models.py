"""More models than /metrics shows one by one."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import requests
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.access.tokens import bearer, digest
from tests.e2e.control import answer, client_of
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import running
from tests.waiting import wait_until

InferenceServerException = pytest.importorskip("tritonclient.utils").InferenceServerException


#: Models above which a listing of them is made beside the event loop.
MANY = 256
ACCESS: Final = f"""
anonymous: [inference, metadata, health]
keys:
  - {{name: all, sha256: {digest("sk-all")}, groups: [statistics, model-repository]}}
  - {{name: some, sha256: {digest("sk-some")}, groups: [statistics, model-repository], models: [m0003]}}
"""


def scrape(url: str, accept: str = "") -> dict[tuple[str, str, str], float]:
    """Values of samples by their name, model and version or status."""
    text = requests.get(url, headers={"accept": accept}, timeout=120).text
    parse = openmetrics.text_string_to_metric_families if accept else text_string_to_metric_families
    return {
        (one.name, one.labels.get("model", ""), one.labels.get("version", one.labels.get("status", ""))): one.value
        for family in parse(text)
        for one in family.samples
    }


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_busiest_models_have_series_and_the_others_one_together(tmp_path: Path, accept: str) -> None:
    root = tmp_path / "models"
    names = [f"m{number}" for number in range(6)]
    for number, name in enumerate(names):
        add_model(root, name, versioned_model(number), 1)
    (tmp_path / "server").mkdir()
    flags = ["--metrics-addr", "127.0.0.1:0", "--metrics-models", "2"]
    with running(root, tmp_path / "server", flags) as server, client_of(server) as client:
        url = f"http://127.0.0.1:{server.http_port}/metrics"

        def ask(name: str, times: int) -> None:
            for _ in range(times):
                answer(client, name)

        def until(found: Callable[[dict[tuple[str, str, str], float]], bool]) -> dict[tuple[str, str, str], float]:
            seen: list[dict[tuple[str, str, str], float]] = []

            def look() -> bool:
                seen[:] = [scrape(url, accept)]  # which may be some moments old
                return found(seen[0])

            wait_until(look)
            return seen[0]

        def ok(name: str) -> tuple[str, str, str]:
            return "inference_requests_total", name, "ok"

        before = until(lambda values: ok("(others)") in values)
        shown = {model for name, model, _ in before if name == "inference_requests_total"} - {"", "(others)"}
        assert len(shown) == 2
        ask("m4", 30)
        ask("m5", 40)
        ask("m0", 3)
        until(lambda values: sum(values.get(ok(name), 0) for name in (*names, "(others)")) == 73 and ok("m4") in values)
        # From now on both have series of their own.
        before = until(lambda values: ok("m5") in values)
        ask("m4", 5)
        ask("m1", 2)
        after = until(lambda values: sum(values.get(ok(name), 0) for name in (*names, "(others)")) == 80)
        assert after[ok("m4")] - before[ok("m4")] == 5
        assert after[ok("(others)")] - before[ok("(others)")] == 2
        triton = [
            value
            for (name, _, _), value in after.items()
            if name.removesuffix("_total") == "nv_inference_request_success"
        ]
        assert sum(triton) == 80
        assert after["loaded_models", "", ""] == 6
        assert ("inference_request_duration_seconds_count", "(others)", "") in after

        response = requests.get(url, headers={"accept-encoding": "gzip"}, timeout=120, stream=True)
        assert response.headers["content-encoding"] == "gzip"
        packed = response.raw.read(decode_content=False)
        assert b"inference_requests_total" in gzip.decompress(packed)
        plain = requests.get(url, headers={"accept-encoding": "identity"}, timeout=120)
        assert "content-encoding" not in plain.headers
        assert len(packed) < len(plain.content) / 3
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_answers_about_very_many_models_are_whole(tmp_path: Path) -> None:
    root = tmp_path / "models"
    model = versioned_model(7)
    for number in range(MANY + 20):
        add_model(root, f"m{number:04d}", model, 1)
    (tmp_path / "server").mkdir()
    (tmp_path / "access.yaml").write_text(ACCESS)
    flags = ["--access-file", str(tmp_path / "access.yaml")]
    with running(root, tmp_path / "server", flags) as server, client_of(server) as client:
        assert [answer(client, f"m{number:04d}") for number in (3, 4)] == [7, 7]

        def index(key: str) -> dict[str, str]:
            found = client.get_model_repository_index(headers={"authorization": bearer(key).decode()}).models
            return {one.name: one.state for one in found}

        def counted(key: str, name: str = "") -> dict[str, int]:
            found = client.get_inference_statistics(name, headers={"authorization": bearer(key).decode()}).model_stats
            return {one.name: one.inference_count for one in found}

        # Of one answer, callers who may use some models get their part, and nobody else misses that.
        for _ in range(3):
            assert index("sk-some") == {"m0003": "READY"}
            assert index("sk-all") == {f"m{number:04d}": "READY" for number in range(MANY + 20)}
            assert counted("sk-some").keys() == {"m0003"}
            assert len(counted("sk-all")) == MANY + 20
        wait_until(lambda: counted("sk-all")["m0003"] == counted("sk-some")["m0003"] == 1)  # it may be some moments old
        assert counted("sk-all", "m0004") == {"m0004": 1}
        with pytest.raises(InferenceServerException, match="may not use"):
            counted("sk-some", "m0004")
        assert f"{MANY + 20} versions of {MANY + 20} models: {MANY + 20} are ready, none is not" in server.log
        assert len(server.log.splitlines()) < MANY  # no row for each
        assert server.stop() == 0
        assert "Traceback" not in server.log
