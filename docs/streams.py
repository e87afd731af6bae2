"""Draws docs/streams.md from the table that the server runs by.

python docs/streams.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.h2grpc.streams import ACCEPT, TRANSITIONS, Input, State

PAGE = Path(__file__).with_name("streams.md")

_HEAD = """# The life of a stream

This page shows what may happen to an HTTP/2 stream, for whoever works on `toutates/h2grpc`.

Drawn by `python docs/streams.py` from `TRANSITIONS` in `toutates/h2grpc/streams.py`; a test compares the two. Source:
RFC 9113 section 5.1, the server's side. PRIORITY is allowed in every state and changes none.
"""


def page() -> str:
    """The page: what leads from state to state, and what each state does with each input."""
    arrows: dict[tuple[State, State], list[str]] = {}
    rows: list[str] = []
    for state in State:
        cells: list[str] = []
        for stream_input in Input:
            action, number = TRANSITIONS[state][stream_input]
            target = State(number)
            if action is ACCEPT and target is not state:
                arrows.setdefault((state, target), []).append(stream_input.name)
            arrow = f" → {target.name}" if target is not state else ""
            cells.append(f"{action.name}{arrow}")
        rows.append(f"| {state.name} | {' | '.join(cells)} |")
    lines = [_HEAD, "```mermaid", "stateDiagram-v2", "    [*] --> IDLE"]
    lines += [
        f"    {source.name} --> {target.name}: {'<br>'.join(names)}" for (source, target), names in arrows.items()
    ]
    lines += ["```", "", f"| state | {' | '.join(stream_input.name for stream_input in Input)} |"]
    lines += ["|---" * (len(Input) + 1) + "|", *rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
