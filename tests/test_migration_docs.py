"""docs/migrating-from-triton.md and docs/model-repository.md say what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from toutates.command.triton_flags import TRITON_FLAGS
from toutates.models.config.queues import KEYS
from toutates.models.config.settings import ModelSettings, SessionSettings
from toutates.models.config.triton_fields import FIELDS, PARAMETERS

DOCS = Path(__file__).parent.parent / "docs"

#: Every flag of tritonserver 2.73, without its dashes; with those that are deprecated, and those for other clouds.
FLAGS_OF_TRITON = re.findall(
    r"\S+",
    """
    allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics allow-sagemaker
    allow-vertex-ai backend-config cuda-virtual-address-size response-cache-byte-size sagemaker-port
    sagemaker-safe-port-range sagemaker-thread-count trace-count trace-file trace-level trace-log-frequency trace-rate
    vertex-ai-default-model vertex-ai-port vertex-ai-thread-count
    backend-directory buffer-manager-thread-count cache-config cache-directory cuda-memory-pool-byte-size
    disable-auto-complete-config enable-peer-access exit-on-error exit-timeout-secs grpc-address
    grpc-header-forward-pattern grpc-http2-max-ping-strikes grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size
    grpc-infer-response-compression-level grpc-infer-thread-count grpc-keepalive-permit-without-calls
    grpc-keepalive-time grpc-keepalive-timeout grpc-max-connection-age grpc-max-connection-age-grace
    grpc-max-response-pool-size grpc-port grpc-restricted-protocol grpc-root-cert grpc-server-cert
    grpc-server-key grpc-use-ssl grpc-use-ssl-mutual host-policy http-address http-header-forward-pattern
    http-max-input-size http-port http-restricted-api http-thread-count id load-model log-error log-file
    log-format log-info log-verbose log-warning metrics-address metrics-config metrics-interval-ms metrics-port
    min-supported-compute-capability model-config-name model-control-mode model-load-gpu-limit
    model-load-retry-count model-load-thread-count model-namespacing model-repository model-store
    pinned-memory-pool-byte-size rate-limit rate-limit-resource repoagent-directory repository-poll-secs
    reuse-grpc-port reuse-http-port strict-model-config strict-readiness trace-config
    """,
)


def rows(name: str, section: str = "") -> list[list[str]]:
    """The cells of every row of every table, or of those of one section."""
    text = (DOCS / name).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = text.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_field_of_the_configuration_is_listed_with_its_verdict() -> None:
    verdicts = {rule.verdict.value for rule in FIELDS.values()}
    table = rows("migrating-from-triton.md", "Fields of config.pbtxt")
    listed = {names(row[0])[0]: row[1] for row in table if row[1] in verdicts}
    assert listed == {path: rule.verdict.value for path, rule in FIELDS.items()}


def test_every_parameter_is_listed() -> None:
    table = rows("migrating-from-triton.md")
    start = next(at for at, row in enumerate(table) if row[0] == "key of `parameters`")
    listed = [name for row in table[start + 1 :] for name in names(row[0])]
    assert listed == list(PARAMETERS)


def test_every_key_of_config_yaml_is_listed() -> None:
    table = rows("model-repository.md", "config.yaml")
    listed = [name for row in table if row[0].startswith("`") for name in names(row[0])]
    # The keys of ensembles are in ensembles.md, and one field is `batching` again.
    expected = [name for name in ModelSettings.__dataclass_fields__ if name not in ("ensemble", "joined_by")]
    at = expected.index("policies")
    expected[at : at + 1] = KEYS
    assert listed == expected
    text = (DOCS / "model-repository.md").read_text()
    for key in SessionSettings.__dataclass_fields__:
        assert f"\n  {key}: " in text


def test_every_flag_of_tritonserver_has_a_row() -> None:
    assert sorted(TRITON_FLAGS) == sorted(FLAGS_OF_TRITON)


def test_the_table_of_flags_is_that_of_the_code() -> None:
    made = runpy.run_path(str(DOCS / "triton_flags.py"))
    assert made["page"]() == (DOCS / "migrating-from-triton.md").read_text(), "run python docs/triton_flags.py"
    table = rows("migrating-from-triton.md", "The command line")
    listed = [name.removeprefix("--") for row in table for name in names(row[0]) if name.startswith("--")]
    assert listed == list(TRITON_FLAGS)


def test_what_is_to_be_written_instead_exists() -> None:
    """A flag in the right column is one of ours."""
    ours = {name for row in rows("flags.md", "Flags") for cell in names(row[0]) for name in cell.split()}
    ours = {name.partition("[")[0] for name in ours if name.startswith("--")}
    for section in ("Ports and probes", "Where models are", "The command line"):
        for row in rows("migrating-from-triton.md", section):
            for cell in names(row[-1]):
                for word in cell.split():
                    assert not word.startswith("--") or word in ours, word


def test_every_form_of_a_repositorys_place_is_listed() -> None:
    cells = " ".join(row[0] for row in rows("migrating-from-triton.md", "Where models are"))
    for form in ("s3://BUCKET", "s3://HOST:PORT", "s3://http://", "s3://https://", "gs://", "as://"):
        assert form in cells
    ports = " ".join(row[0] for row in rows("migrating-from-triton.md", "Ports and probes"))
    for port in ("8000", "8001", "8002", "/v2/health/live"):
        assert port in ports
