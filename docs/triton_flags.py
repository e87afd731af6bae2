"""Writes the flags of tritonserver into docs/migrating-from-triton.md, from the table that the command line is made of.

python docs/triton_flags.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.command.flags import FLAGS
from toutates.command.triton_flags import TRITON_FLAGS, TritonFlag, Verdict, effect

PAGE = Path(__file__).with_name("migrating-from-triton.md")

_HEAD = "| flag of tritonserver | | here |\n|---|---|---|\n"


def page() -> str:
    """The page with its table as the code has it."""
    before, head, rest = PAGE.read_text().partition(_HEAD)
    assert head, "the page has no table of flags"
    return before + head + "".join(map(_row, TRITON_FLAGS.values())) + "\n" + rest.partition("\n\n")[2]


def _row(flag: TritonFlag) -> str:
    verdict, note = effect(flag, FLAGS)
    if flag.harmless not in (None, "") and verdict in (Verdict.NO_EFFECT, Verdict.REFUSED):
        said = "accepted" if verdict is Verdict.REFUSED else "not warned of"
        note += f"; `{str(flag.harmless).lower()}` is {said}"
    return f"| `--{flag.name}` | {verdict.value} | {note} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
