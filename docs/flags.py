"""Writes docs/flags.md from the table that the flags of the server are made of.

python docs/flags.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.command.flags import GROUPS, LIMITS, Flag, variable

PAGE = Path(__file__).with_name("flags.md")

_HEAD = """# Settings

This page lists every setting of the server: its flag, its environment variable, its default and what it does. To see
what a server would run with, and where each value comes from:

```
toutates config show --model-repository /path/to/models
```

The tables are written by `python docs/flags.py` from `toutates/command/flags.py`; a test compares them.

## Where settings come from

| where | form | example |
|---|---|---|
| flag | `--NAME VALUE` or `--NAME=VALUE` | `--grpc-addr 0.0.0.0:9001` |
| environment | `TOUTATES_NAME`, in capitals, with `_` for `-` | `TOUTATES_GRPC_ADDR=0.0.0.0:9001` |
| file, named by `--config` or `TOUTATES_CONFIG` | YAML; keys are flags without dashes | `grpc-addr: 0.0.0.0:9001` |
| default | | |

A flag overrides a variable, a variable overrides the file, and the file overrides the default. A flag that may be given
several times is overridden as a whole: if the command line has a `--model-repository`, those of the file do not count.
Each name of `--limit` is a setting of its own.

```yaml
model-repository:
  - /models
  - s3://bucket/models
metrics-addr: off
limit:
  message_size: 16777216
  connection_age: 3600
```

- In the file a value is written as on the command line. A setting that may be given several times takes a list or one
  value; `limit` takes a mapping.
- In a variable a setting that may be given several times has one value on each line. An empty variable counts as unset,
  and variables of other names that begin with `TOUTATES_` are passed over.
- A setting that cannot be used ends the start with exit code 2. A line for each mistake names the flag, the variable,
  or the file and key, and says what is wrong and what to write.
- `toutates config show` takes the same flags, prints the settings, and ends with exit code 2 where a server could not
  start with them. It hides secrets. A model's directory of the name `show` is written `toutates config ./show`.
- `toutates check`, `config MODEL_DIR` and `probe` read their flags alone.
- `toutates serve` and `tritonserver` are other names of `toutates`. All of them take
  [the flags of tritonserver](migrating-from-triton.md#the-command-line) too, which count as flags.
"""

_LIMITS_HEAD = """## Limits

Each is given as `--limit NAME=VALUE`, or under `limit:` in the file. `toutates --help-limits` prints them. The metric
`toutates_limit_hits_total` counts by the same names how often clients met one; [operating.md](operating.md#limits) says
what clients see. The flags in the last column set the same, also as variables and as keys of the file. Give one or the
other, not both.
"""

_OLD = """## Former flags

`--executor-cores N` sets both `--model-load-thread-count` and `--executor-cpus`, where these are not given by the same
source. It is accepted, and not shown by `--help`.
"""


#: What the page says of a setting beside the one line of ``--help``.
DETAILS = {
    "http-half-close": "Without it they have left; see [rest.md](rest.md#callers-that-leave)",
    "api-key-file": "It is read again when it is replaced; see [keys](text-apis.md#keys)",
    "access-file": "It is read again when it changes; see [access.md](access.md)",
    "custom-op-libraries": (
        "They are registered with every session. Those in a directory are for models whose config.pbtxt names them in "
        "`op_library_filename`, from inside their repository"
    ),
    "metrics-models": "See [many models](metrics.md#many-models)",
    "traffic-file": "It is read again when it changes; see [traffic.md](traffic.md)",
    "model-repository": (
        "Elsewhere than in a folder: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `as://ACCOUNT/CONTAINER/PREFIX`, "
        "`hf://ORG/MODEL`, `oci://REGISTRY/REPO:TAG`, `https://HOST/PATH`. Not required where there is `--s3-bucket`"
    ),
    "model-name": "See [A model alone](model-repository.md#a-model-alone)",
    "wait-for-repository": (
        "For volumes that are mounted later. One that is missing then ends the start, with exit code 2"
    ),
    "load-models": "An unknown name is an error",
    "model-control-mode": "See [Model control](model-repository.md#model-control)",
    "repository-poll-secs": (
        "In all modes a repository that did not answer at the start is asked again after the same time"
    ),
    "model-load-thread-count": "The name is Triton's",
    "strict-readiness": "Also while there is no model; see [Health](operating.md#health)",
    "exit-on-error": (
        "The exit code is 1 for a model, 2 for a repository. Otherwise the others are served, and the server "
        "is not ready. Triton's default is `true`"
    ),
    "s3-endpoint": "See [S3](model-repository.md#s3)",
    "model-cache-dir": "Servers of one host and user may share it",
    "model-cache-size": "Models that a running server uses are not removed",
    "download-min-rate": "Of time spent waiting for the file, a minute at a time",
    "execution-providers": (
        "`trt` is `tensorrt`. `auto` is CUDA where this ONNX Runtime and this machine have it, else the CPU. "
        "The CPU always comes last, for operators that the others do not run"
    ),
    "ort-intra-threads": "More than one helps large models. Idle threads do not spin",
    "processing-cores": (
        "Each has a listener, an epoll and connections of its own. More than one helps on free-threaded Python"
        " only, where the default is one per CPU that the process may use, without those of the other roles; see"
        " [Cores](operating.md#cores)"
    ),
    "executor-threads": (
        "While runs of one model last and batches of others wait, up to four times as many; see "
        "[Cores](operating.md#cores). GPUs and other kinds of models have threads of "
        "their own"
    ),
    "executor-cpus": (
        "With `--cpu-pinning` executors are pinned to them; without it, the default of `--processing-cores` "
        "leaves this many CPUs free"
    ),
    "cpu-pinning": "In the environment and in a file write `all` for the flag without CPUS",
    "grpc-addr": "Or `[IPV6]:PORT`. With port 0 the system chooses a port, which the log names",
    "limit": "See [Limits](#limits) for the names",
    "max-inflight-requests": "Of all models together; see [Overload](operating.md#overload)",
    "allow-client-shm": "Not with `--processes`; see [shared-memory.md](shared-memory.md)",
    "grpc-restricted-protocol": (
        "PROTOCOLS are separated by commas: health, metadata, inference, shared-memory, model-config, model-"
        "repository, statistics, trace, logging, reflection; see [Access](operating.md#access)"
    ),
    "grpc-reflection": "With `false` its methods are unknown; see [Access](operating.md#access)",
    "grpc-compression": "Inference responses only",
    "server-id": "Some clients require the default",
    "tls-cert": "They are read again when they are replaced, without dropping connections; see [TLS](operating.md#tls)",
    "trace-endpoint": (
        "Needs `toutates[otel]`. TraceSetting changes all but this while the server runs. See [tracing](tracing.md)"
    ),
    "trace-rate": "0 traces only requests whose callers record the trace",
    "metrics-addr": "The command `tritonserver` has `0.0.0.0:8002`. See [monitoring.md](monitoring.md)",
    "log-level": "See [logging.md](logging.md)",
    "log-format": "`default` is `text`. The log goes to standard error",
    "access-log-rate": "Each worker counts its own requests",
    "connections": "Further connections get GOAWAY. The number is split over the workers",
    "streams": "Clients queue further calls silently",
    "message_size": "Larger requests get RESOURCE_EXHAUSTED",
    "decompressed_size": (
        "Larger requests get RESOURCE_EXHAUSTED. Requests of more than 256 KiB, and all beyond 32 MiB a second,"
        " are decompressed in a thread beside the worker, one at a time"
    ),
    "connection_buffer": "A call that exceeds it gets RESOURCE_EXHAUSTED",
    "server_buffer": "Records of open calls count too; see [Limits](operating.md#limits)",
    "stall_timeout": "In this time a client has to send or read 64 KiB, or the rest",
}


def page() -> str:
    """The page: a table for each group of flags, and one for the limits."""
    lines = [_HEAD, "## Flags", ""]
    for title, flags in GROUPS.items():
        lines += [
            f"### {title if title == 'gRPC' else title[0].upper() + title[1:]}",
            "",
            "| flag | variable | default | meaning |",
            "|---" * 4 + "|",
        ]
        lines += [_row(flag) for flag in flags]
        lines.append("")
    lines += [_LIMITS_HEAD, "| NAME | default | what it bounds | flag |", "|---" * 4 + "|"]
    lines += [
        f"| `{limit.name}={limit.metavar}` | {_default(limit)} | {_meaning(limit)} | `--{limit.old} {limit.metavar}` |"
        for limit in LIMITS.values()
    ]
    return "\n".join([*lines, "", _OLD])


def _row(flag: Flag) -> str:
    form = f"--{flag.name} {flag.metavar}" if flag.bare is None else f"--{flag.name}[={flag.metavar}]"
    return f"| `{form}` | `{variable(flag.name)}` | {_default(flag)} | {_meaning(flag)} |"


def _default(flag: Flag) -> str:
    return flag.unset if flag.default is None else f"`{flag.default}`"


def _meaning(flag: Flag) -> str:
    return ". ".join(text for text in (flag.help, DETAILS.get(flag.name, "")) if text)


if __name__ == "__main__":
    PAGE.write_text(page())
