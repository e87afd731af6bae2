"""Renders a profile: as a page with a flame graph, or as text for other tools."""

from __future__ import annotations

import json
from typing import Any, Final

from toutates.observe.debug.profiler import Profile
from toutates.observe.status.page import Page, load_page

__all__ = ["collapsed", "flame_page"]

#: Frames with a smaller share of the whole are left out of the page, where they would be too narrow to see.
MIN_SHARE: Final = 0.0005

#: A frame: its label, its microseconds including the frames that it called, and those frames.
_Node = list[Any]


def collapsed(profile: Profile) -> str:
    """A line per stack, as flamegraph.pl reads it: frames from the outermost to the innermost, and microseconds."""
    lines = [f"{';'.join(frame.replace(';', ',') for frame in stack)} {us}" for stack, us in profile.stacks.items()]
    return "".join(f"{line}\n" for line in sorted(lines))


def flame_page(profile: Profile) -> Page:
    """A page with the flame graph, in one file."""
    about = {
        "unit": profile.weight.value,
        "samples": profile.samples,
        "seconds": round(profile.seconds, 2),
        "tree": _tree(profile),
    }
    # Within a script element only "<" could end the element.
    return load_page("flame.html", {"PROFILE": json.dumps(about, separators=(",", ":")).replace("<", r"\u003c")})


def _tree(profile: Profile) -> _Node:
    root: dict[str, Any] = {"us": 0, "calls": {}}
    for stack, us in profile.stacks.items():
        node = root
        node["us"] += us
        for frame in stack:
            node = node["calls"].setdefault(frame, {"us": 0, "calls": {}})
            node["us"] += us
    return _as_lists("all threads", root, root["us"] * MIN_SHARE)


def _as_lists(label: str, node: dict[str, Any], least: float) -> _Node:
    """A frame in the form that the page reads, the called frames in descending order of time."""
    called = [(name, inner) for name, inner in node["calls"].items() if inner["us"] >= least]
    called.sort(key=lambda one: -one[1]["us"])
    return [label, node["us"], [_as_lists(name, inner, least) for name, inner in called]]
