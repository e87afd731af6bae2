"""The table of metrics, and the page that is made of it."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.families import Family
from toutates.observe.metrics.spec import Kind, MetricSpec

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_in_the_docs_is_made_of_the_table() -> None:
    made = runpy.run_path(str(DOCS / "metrics.py"))
    assert (DOCS / "metrics.md").read_text() == made["page"](), "run python docs/metrics.py"


def test_every_metric_has_one_line_in_the_docs() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(CATALOGUE)


def test_the_queries_in_the_docs_are_understood_and_ask_for_what_there_is(tmp_path: Path) -> None:
    queries = runpy.run_path(str(DOCS / "metrics.py"))["QUERIES"]
    for query in queries.values():
        names = re.findall(r"(?:inference|toutates|nv|process)_\w+", query)
        assert names
        assert all(re.sub(r"_(bucket|sum|count)$", "", name) in CATALOGUE for name in names)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    rules = [{"record": f"record_{at}", "expr": query} for at, query in enumerate(queries.values())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "docs", "rules": rules}]}))
    ended = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_every_metric_says_what_it_is_and_what_to_do(spec: MetricSpec) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", spec.name)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) and label != "le" for label in spec.labels)
    assert spec.unit
    for text in (spec.help, spec.action):
        assert text.endswith(".")
        assert text[0].isupper() or text[0] in "`0["
        assert "|" not in text
    if spec.name.startswith(("inference_", "toutates_", "process_")) and spec.kind is Kind.COUNTER:
        assert spec.name.endswith("_total")


def test_no_two_families_have_one_name_in_openmetrics() -> None:
    # There, the family of a counter has no `_total`, and may so be another metric's.
    names = [Family(spec, ()).openmetrics_name for spec in CATALOGUE.values()]
    assert len(set(names)) == len(names)


def test_the_names_of_the_original_and_of_triton_are_all_there() -> None:
    original = (
        "inference_requests_total inference_batches_total inference_batch_items inference_client_batch_size "
        "inference_request_duration_seconds inference_batch_duration_seconds inference_model_execution_seconds "
        "inference_request_model_proxy_aquired_seconds inference_serialization_done_seconds "
        "inference_inference_in_queue_seconds inference_exec_start_seconds inference_exec_end_seconds "
        "inference_output_processed_seconds inference_inflight inference_capacity inference_executors_in_use "
        "inference_configured_batch_size loaded_models"
    )
    triton = (
        "nv_inference_request_success nv_inference_request_failure nv_inference_count nv_inference_exec_count "
        "nv_inference_request_duration_us nv_inference_queue_duration_us nv_inference_compute_input_duration_us "
        "nv_inference_compute_infer_duration_us nv_inference_compute_output_duration_us "
        "nv_inference_pending_request_count nv_model_load_duration_secs "
        "nv_cache_num_hits_per_model nv_cache_num_misses_per_model nv_cache_hit_duration_per_model "
        "nv_cache_miss_duration_per_model nv_cache_util nv_cache_num_entries nv_cache_num_lookups nv_cache_num_hits "
        "nv_cache_num_misses nv_cache_num_evictions nv_cache_lookup_duration nv_cache_insertion_duration "
        "nv_cpu_utilization nv_cpu_memory_total_bytes "
        "nv_cpu_memory_used_bytes nv_gpu_utilization nv_gpu_memory_total_bytes nv_gpu_memory_used_bytes "
        "nv_gpu_power_usage nv_gpu_power_limit nv_energy_consumption"
    )
    theirs = [name for name in CATALOGUE if not name.startswith(("toutates_", "process_"))]
    assert theirs == [*original.split(), *triton.split()]
