"""TorchServe's BaseHandler with torch: TorchScript, and a class of the archive's own with its weights."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.torchserve_archives import contents, mar
from toutates.repositories.torchserve.importing import import_archive

torch = pytest.importorskip("torch", reason="is not installed: the extra pytorch")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.linear(x)
"""
HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Summing(BaseHandler):
    def preprocess(self, data):
        return super().preprocess([row["body"] for row in data]).float()
"""
ROWS = [[1.0, 2.0], [3.0, 4.0]]


def script() -> bytes:
    """TorchScript of the sum of a row."""
    kind = type("Sum", (torch.nn.Module,), {"forward": lambda self, x: x.sum(1, keepdim=True)})
    content = io.BytesIO()
    torch.jit.save(torch.jit.trace(kind(), torch.zeros(1, 2)), content)
    return content.getvalue()


def weights(**more: Any) -> bytes:
    content = io.BytesIO()
    torch.save({"linear.weight": torch.ones(1, 2), **more}, content)
    return content.getvalue()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Imports an archive, and loads it as its model.py does."""
    before = set(sys.modules)

    def load_handler(files: dict[str, Any]) -> Any:
        imported = import_archive(mar(tmp_path / "a.mar", files), tmp_path / "models")
        monkeypatch.syspath_prepend(str(imported.path))
        from ts.service import Service

        return Service(imported.path)

    yield load_handler
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("ts", "handler", "net"):
            del sys.modules[name]


ARCHIVES: dict[str, Callable[[], dict[str, Any]]] = {
    "TorchScript": lambda: contents(files={"handler.py": HANDLER, "w.pt": script()}, serializedFile="w.pt"),
    "its own class": lambda: contents(
        files={"handler.py": HANDLER, "net.py": NET, "w.pt": weights()}, serializedFile="w.pt", modelFile="net.py"
    ),
}


@pytest.mark.parametrize("form", ARCHIVES)
def test_the_base_handler_runs_a_model_of_torch(load: Callable[[dict[str, Any]], Any], form: str) -> None:
    service = load(ARCHIVES[form]())
    head = json.dumps({"content-type": "application/json"}).encode()
    results = service.answer([(json.dumps(row).encode(), head) for row in ROWS])
    assert [json.loads(result.body) for result in results] == [[float(np.sum(row))] for row in ROWS]


class Evil:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('was run')",)


def test_weights_that_hold_code_are_not_loaded(load: Callable[[dict[str, Any]], Any]) -> None:
    files: dict[str, Any] = {"handler.py": HANDLER, "net.py": NET, "w.pt": weights(evil=Evil())}
    with pytest.raises(Exception, match="Weights only load failed"):
        load(contents(files=files, serializedFile="w.pt", modelFile="net.py"))
