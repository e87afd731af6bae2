"""Aliases, splits and shadows of a loaded server, while their rules and their models change, and to its end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from tests.e2e.control import EXPLICIT, client_of
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import pb
from tests.waiting import wait_until
from toutates.bench.load import Asked, Load, LoadFailed, LoadResult, run_load

_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_SECONDS: Final = 5.0
_LOADS: Final = 20
#: What becomes of copies of requests.
_OUTCOMES: Final = ("equal", "different", "failed", "skipped")
_RULES: Final = """
aliases: {live: ranker, copied: {model: ranker, version: 2}}
traffic:
  ranker:
    split: [{version: 1, weight: 1}, {version: 2, weight: 1}]
    sticky: id
    shadow: {model: copy, share: 1.0}
  mixed:
    split: [{model: ranker, version: 1, weight: 3}, {model: ranker, version: 2, weight: 1}]
    shadow: {model: ranker, version: 1, share: 0.5}
"""
_FLAGS: Final = (*EXPLICIT, "--load-model=*", "--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")


def _asked(model: str, number: int) -> Asked:
    request = pb.ModelInferRequest(model_name=model, id=f"user-{number}", raw_input_contents=[bytes(16)])
    request.inputs.add(name="INPUT", datatype="INT32", shape=[1, 4])
    return Asked(_INFER, request.SerializeToString(), 1)


def _load(server: ServerProcess, seconds: float) -> Load:
    names = ("live", "ranker", "mixed")
    asked = [_asked(name, number) for name in names for number in range(20)]
    # More under way than there may be copies, so that some are left out.
    return Load(
        "127.0.0.1", server.port, asked, connections=6, rate=None, seconds=seconds, patience_s=120, under_way=400
    )


class _Beside:
    """Does things again and again in threads of their own, until its block ends; an exception fails the test."""

    def __init__(self, *acts: Callable[[], Any]) -> None:
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(act,), daemon=True) for act in acts]

    def _run(self, act: Callable[[], Any]) -> None:
        try:
            while not self._over.wait(0.05):
                act()
        except BaseException as error:
            self._failures.append(error)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not self._failures


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 3])
def test_rules_and_models_that_change_under_load_stop_nothing(tmp_path: Path, workers: int) -> None:
    """A copy that was freed by who counted another one once stopped a worker of free-threaded Python for ever."""
    root = tmp_path / "models"
    for version in (1, 2):
        add_model(root, "ranker", versioned_model(version), version)
    add_model(root, "copy", versioned_model(1), 1)
    (root / "traffic.yaml").write_text(_RULES)
    (tmp_path / "server").mkdir()
    flags = [*_FLAGS, "--processing-cores", str(workers)]
    with (
        running(root, tmp_path / "server", flags) as server,
        client_of(server) as client,
        requests.Session() as session,
    ):
        url = f"http://127.0.0.1:{server.rest_port}/v2/repository/traffic"
        pages = [f"http://127.0.0.1:{server.http_port}/{page}" for page in ("metrics", "status.json")]
        targets: cycle[Any] = cycle(["ranker", {"model": "ranker", "version": 1}, "copied"])
        unloads = cycle([True, False])

        def switch_alias() -> None:
            response = session.post(url, json={"aliases": {"live": next(targets)}}, timeout=120)
            assert response.status_code == 200, response.text

        def reload() -> None:
            (root / "ranker" / "1" / "model.onnx").touch()
            client.load_model("ranker")
            # Where there is no such model, its copies fail alone.
            client.unload_model("copy") if next(unloads) else client.load_model("copy")

        def look() -> None:
            assert [requests.get(page, timeout=120).status_code for page in pages] == [200, 200]

        def compared() -> Counter[str]:
            counted = Counter[str]()
            for line in requests.get(pages[0], timeout=120).text.splitlines():
                if line.startswith("toutates_shadow_requests_total"):
                    counted[line.partition('outcome="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
            return counted

        with _Beside(switch_alias, reload, look):
            for _ in range(_LOADS):  # on a busy machine one load may be too short for everything to happen
                result = run_load(_load(server, _SECONDS))
                statuses: Counter[str] = sum((Counter(one.statuses) for one in result.outcome.requests), Counter())
                assert set(statuses) == {"OK"}, (result.texts, server.log[-4000:])
                if all(compared()[what] for what in _OUTCOMES):
                    break
            else:
                raise AssertionError(compared())
        client.load_model("copy")

        # It ends under load, too.
        def answered() -> int:
            return sum(int(one.inference_count) for one in client.get_inference_statistics("ranker").model_stats)

        ended: list[LoadResult | LoadFailed] = []

        def go_on() -> None:
            try:
                ended.append(run_load(_load(server, _SECONDS)))
            except LoadFailed as failure:
                ended.append(failure)

        load = threading.Thread(target=go_on, daemon=True)
        before = answered()
        load.start()
        wait_until(lambda: answered() > before)
        assert server.stop() == 0
        load.join(120)
        assert ended
        assert "Traceback" not in server.log
