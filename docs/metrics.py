"""Writes docs/metrics.md from the table that the server's metrics are made of.

python docs/metrics.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.spec import MetricSpec, Presence

PAGE = Path(__file__).with_name("metrics.md")

_HEAD = """# Metrics

This page lists every metric, what it means, and what to do when it moves. To see them all:

```
curl http://localhost:9090/metrics
```

`GET /metrics` on `--metrics-addr`, in Prometheus's text format, or in OpenMetrics for scrapers that ask for it.

The tables are written by `python docs/metrics.py` from `toutates/observe/metrics/catalogue.py`; tests compare them with
it, and it with what a server says.

**Cost.** Requests are counted in plain numbers of each thread, which are added up when somebody scrapes, 0.15 ms for a
model version. What is scraped more often than that allows is the same text again.

**Times** are histograms with buckets from 12.5 µs, doubled up to 13.1 s, so that `histogram_quantile` is exact to a
factor of two; sizes have buckets from 1, doubled up to 2048. The first two steps of a request are timed for one request
in 256, everything else for each.

**Models that do not exist** have no series: requests for them are counted with an empty `model`.

## Many models

With more models than `--metrics-models` (200), the busiest have series of their own, and all others one together,
with the model `(others)` and an empty version. Which are the busiest is decided at each scrape, by the requests since
the last ones; a model keeps its place until another is twice as busy. A request belongs to its model's own series if
that was shown when the request was counted, and to `(others)` if not. So no counter falls when a model comes or goes,
a series that comes back goes on where it ended, and the sum over all series is that of all requests:

```
sum(rate(inference_requests_total[5m]))
```

Where more than 1,500 of the others are used between two scrapes, a scrape adds up 1,500 of them, and the next ones the
rest.

So many models have four of the histograms each: response times, times in the queue, times of runs, and sizes of
requests; `(others)` has all but the first two steps. Gauges, and metrics that models have of their own, are those of
the busiest. What is loaded and unloaded between two scrapes is not seen. The text is compressed (gzip) for those who
take it, on the address of `--metrics-addr`.

## Notes

**Tags.** The `metric_tags` of a model's `config.pbtxt` are labels of its `nv_*` series, as with Triton, each with an
underscore before its key.

**Metrics of models.** Python models may have counters, gauges and histograms of their own
([python-models.md](python-models.md)), which are shown after the server's.

**When counters begin again.** Series with a `model` alone are sums over its versions, those included that were replaced
or unloaded meanwhile, and begin at 0 when the model itself was gone. Series with a `version` begin at 0 whenever that
version is loaded, as with Triton. `rate` and `increase` take both for what they are.

**Triton's counters** (`nv_*`) have no `_total` in their names. In the text format their type is counter all the same;
in OpenMetrics, which has no such counters, it is unknown, and the names stay. Prometheus, which asks for OpenMetrics,
stores and computes the same. `nv_gpu_*` and `nv_energy_consumption` need NVIDIA's driver and the package nvidia-ml-py
(extra `[gpu]`), and are there two seconds after the start. Metrics of Triton's that are not here: those of its response
cache and its pinned memory pool, which this server has not, and summaries, for which there are histograms.

Some queries to begin with:
"""

#: What operators ask first, and how Prometheus is asked.
QUERIES = {
    "requests per second, by model": 'sum by (model) (rate(inference_requests_total{status="ok"}[1m]))',
    "share of requests that fail, 0 to 1": (
        'sum(rate(inference_requests_total{status!="ok"}[5m])) / sum(rate(inference_requests_total[5m]))'
    ),
    "99th percentile of the latency, s": (
        "histogram_quantile(0.99, sum by (model, le) (rate(inference_request_duration_seconds_bucket[5m])))"
    ),
    "mean batch, rows": "rate(inference_batch_items_sum[1m]) / rate(inference_batch_items_count[1m])",
    "how busy executors are, 0 to 1": (
        "sum by (model) (rate(toutates_executor_busy_seconds_total[1m])) / sum by (model) (toutates_executors)"
    ),
    "how busy workers are, 0 to 1": "rate(toutates_worker_cpu_seconds_total[1m])",
    "how full the rings are, 0 to 1": "inference_inflight / inference_capacity",
}

_SECTIONS = {
    "Requests and models": ("inference_", "loaded_models"),
    "Triton's": ("nv_",),
    "The server": ("toutates_",),
    "The process": ("process_",),
}


def page() -> str:
    """The page: a table for each kind of name."""
    lines = [_HEAD, "| question | query |", "|---|---|"]
    lines += [f"| {question} | `{query}` |" for question, query in QUERIES.items()]
    lines.append("")
    for title, prefixes in _SECTIONS.items():
        lines += [f"## {title}", "", "| metric | type | unit | labels | what it is | when it moves |", "|---" * 6 + "|"]
        lines += [_row(spec) for spec in CATALOGUE.values() if spec.name.startswith(prefixes)]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(spec: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in spec.labels)
    is_rare = spec.presence not in (Presence.ALWAYS, Presence.MODELS)
    text = f"{spec.help} Only {spec.presence.value}." if is_rare else spec.help
    return f"| `{spec.name}` | {spec.kind.value} | {spec.unit} | {labels} | {text} | {spec.action} |"


if __name__ == "__main__":
    PAGE.write_text(page())
