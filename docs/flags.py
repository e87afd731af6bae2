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

A flag goes before a variable, a variable before the file, and the file before the default. A flag that may be given
several times is replaced as a whole: where the command line has one `--model-repository`, those of the file do not
count. Each name of `--limit` is a setting of its own.

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
- A setting that cannot be used ends the start with exit code 2. There is a line for each mistake, which names the flag,
  the variable, or the file and key, says what is wrong, and what to write.
- `toutates config show` takes the same flags, prints the settings, and ends with exit code 2 where a server could not
  start with them. It hides secrets. A model's directory of the name `show` is written `toutates config ./show`.
- `toutates check`, `config MODEL_DIR` and `probe` read their flags alone.
"""

_LIMITS_HEAD = """## Limits

Each is given as `--limit NAME=VALUE`, or under `limit:` in the file. `toutates --help-limits` prints them. The metric
`toutates_limit_hits_total` counts by the same names how often clients met one; [operating.md](operating.md#limits) says
what clients see. The flags in the last column set the same, also as variables and as keys of the file. Give one or the
other, not both.
"""

_OLD = """## Flags of before

`--executor-cores N` sets both `--model-load-thread-count` and `--executor-cpus`, where these are not given by the same
source. It is accepted, and not shown by `--help`.
"""


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
    return flag.help + (f". {flag.details}" if flag.details else "")


if __name__ == "__main__":
    PAGE.write_text(page())
