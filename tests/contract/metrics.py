"""Metrics: what the product's table says of each, and what is scraped of a server that has answered requests."""

from __future__ import annotations

import re
from typing import Final

from tests.contract.asking import Infer, ask
from tests.e2e.process import ServerProcess
from tests.waiting import wait_until
from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.spec import Kind, MetricSpec, Presence

__all__ = ["metric_lines"]

_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"')
#: What has series on some machines only.
_OF_MACHINES: Final = (Presence.GPUS,)
#: A copy of a request is counted some time after the request.
_LAST: Final = "# TYPE toutates_shadow_slower_total "
_OF_VERSIONS: Final = Infer("split", inputs=(("INPUT", "INT32", (1, 4), 4),))


def metric_lines(server: ServerProcess) -> list[str]:
    """A line for each metric: type, labels, unit; then what a scrape has of it, where that is not the same."""
    for model in ("neg", "kept", "kept", "pair", "split", "copied", "nowhere"):
        ask(server.rest_port, "POST", f"/v2/models/{model}/infer", Infer(model).document)
    ask(server.rest_port, "POST", "/v2/models/split/infer", _OF_VERSIONS.document)
    ask(server.rest_port, "POST", "/embed", {"inputs": "one", "model": "embedder"})
    reply = ask(server.http_port, "GET", "/metrics")

    def is_whole() -> bool:
        nonlocal reply
        reply = ask(server.http_port, "GET", "/metrics")
        return _LAST in reply.body

    wait_until(is_whole)
    types, labels, bounds = _read(reply.body)
    lines = [f"content type {reply.fields['content-type']}"]
    for spec in CATALOGUE.values():
        parts = [spec.name, spec.kind.value, ",".join(spec.labels) or "no labels", spec.unit]
        parts.append(f"present {spec.presence.name.lower()}")
        parts.append(_scraped(spec, types, labels, bounds))
        lines.append("  ".join(parts))
    lines += [f"{name}  {types[name]}  in no table" for name in types if name not in CATALOGUE]
    return sorted(lines)


def _scraped(spec: MetricSpec, types: dict[str, str], labels: dict[str, set[str]], bounds: dict[str, list[str]]) -> str:
    if spec.presence in _OF_MACHINES:
        return "scraped on some machines"
    if spec.name not in types:
        return "not scraped"
    text = "scraped"
    if types[spec.name] != (Kind.GAUGE if spec.kind is Kind.INFO else spec.kind).value:
        text += f" as {types[spec.name]}"
    if labels[spec.name] != set(spec.labels):
        text += f" with {','.join(sorted(labels[spec.name])) or 'no labels'}"
    found = bounds.get(spec.name)
    return f"{text} buckets {found[0]} to {found[-2]} ({len(found)})" if found else text


def _read(text: str) -> tuple[dict[str, str], dict[str, set[str]], dict[str, list[str]]]:
    """By metric, its type, the names of its labels, and the bounds of its buckets."""
    types: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    bounds: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, types[name] = line.split(" ")
        elif line and not line.startswith("#"):
            found = [match[1] for match in _LABEL.finditer(line.rpartition("}")[0])]
            labels.setdefault(name, set()).update(set(found) - {"le"})
            bound = re.search(r'\ble="([^"]*)"', line)
            if bound is not None and bound[1] not in bounds.setdefault(name, []):
                bounds[name].append(bound[1])
    return types, labels, bounds
