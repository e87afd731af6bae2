"""The graph of an ensemble as a picture: SVG, from its ModelConfig alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

from toutates.protocol.model_config_pb2 import DataType, ModelConfig

__all__ = ["graph_svg"]

#: Pixels: of a letter, a line of text, the space between columns and between boxes, and around all.
_LETTER: Final = 7.2
_LINE: Final = 17
_GAP_X: Final = 90
_GAP_Y: Final = 22
_MARGIN: Final = 20
#: Letters of a text, and boxes that are drawn; a configuration may have any number.
_MOST_LETTERS: Final = 40
_MOST_BOXES: Final = 300

_INK, _PAPER, _EDGE, _MUTED = "#1d2733", "#ffffff", "#7a8794", "#55616d"
_FILLS: Final = {"input": "#e3eefb", "step": "#eef3ea", "output": "#fbeede"}


@dataclass(slots=True)
class _Box:
    kind: str
    lines: list[str]
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    column: int = 0
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        return 24 + _LETTER * max(len(line) for line in self.lines)

    @property
    def height(self) -> float:
        return 14 + _LINE * len(self.lines)


def graph_svg(config: ModelConfig) -> str:
    """The steps of an ensemble from left to right, with the tensors between them; a sound graph or not.

    Args:
        config: of the ensemble.
    """
    boxes = [_tensor_box("input", tensor.name, tensor.data_type, tensor.dims) for tensor in config.input]
    for number, step in enumerate(config.ensemble_scheduling.step):
        version = "newest" if step.model_version == -1 else f"version {step.model_version}"
        boxes.append(
            _Box(
                "step",
                [_cut(step.model_name), f"step {number}, {version}"],
                sorted(set(step.input_map.values())),
                sorted(set(step.output_map.values())),
            )
        )
    boxes += [_tensor_box("output", tensor.name, tensor.data_type, tensor.dims) for tensor in config.output]
    boxes = boxes[:_MOST_BOXES]
    writers: dict[str, _Box] = {}
    for box in boxes:
        for tensor in box.writes:
            writers.setdefault(tensor, box)
    _place(boxes, writers)
    width = max((box.x + box.width for box in boxes), default=0) + _MARGIN
    height = max((box.y + box.height for box in boxes), default=0) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="ui-monospace, monospace" font-size="12">',
        f"<title>{_text(f'ensemble {config.name}')}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{_PAPER}"/>',
    ]
    parts += [_edge(writers[tensor], box, tensor) for box in boxes for tensor in box.reads if tensor in writers]
    parts += [_drawn(box) for box in boxes]
    return "\n".join([*parts, "</svg>\n"])


def _tensor_box(kind: str, name: str, datatype: int, dims: Iterable[int]) -> _Box:
    shape = ", ".join(map(str, dims))
    box = _Box(kind, [_cut(name), _cut(f"{DataType.Name(datatype).removeprefix('TYPE_')} [{shape}]")])
    (box.writes if kind == "input" else box.reads).append(name)
    return box


def _place(boxes: list[_Box], writers: dict[str, _Box]) -> None:
    """Put each box right of all that it reads from."""
    for _ in boxes:  # as often as the longest way is long; in a circle it ends too
        is_settled = True
        for box in boxes:
            before = [
                writers[tensor].column for tensor in box.reads if tensor in writers and writers[tensor] is not box
            ]
            column = min(max([one + 1 for one in before], default=box.column), len(boxes))
            is_settled = is_settled and column == box.column
            box.column = column
        if is_settled:
            break
    last = max((box.column for box in boxes), default=0)
    for box in boxes:
        if box.kind == "output":
            box.column = last
    columns: dict[int, list[_Box]] = {}
    for box in boxes:
        columns.setdefault(box.column, []).append(box)
    tallest = max((_height(column) for column in columns.values()), default=0.0)
    x = float(_MARGIN)
    for number in sorted(columns):
        y = _MARGIN + (tallest - _height(columns[number])) / 2
        for box in columns[number]:
            box.x, box.y = x, y
            y += box.height + _GAP_Y
        x += max(box.width for box in columns[number]) + _GAP_X


def _height(column: list[_Box]) -> float:
    return sum(box.height for box in column) + _GAP_Y * (len(column) - 1)


def _edge(start: _Box, end: _Box, tensor: str) -> str:
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x, end.y + end.height / 2
    bend = max(30.0, (x2 - x1) / 2)
    line = (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}" '
        f'fill="none" stroke="{_EDGE}" stroke-width="1.5"/>'
        f'<circle cx="{x2:.0f}" cy="{y2:.0f}" r="3" fill="{_EDGE}"/>'
    )
    if "step" not in (start.kind, end.kind) or start.kind == "input" or end.kind == "output":
        return line  # the box has the tensor's name
    return line + (
        f'<text x="{(x1 + x2) / 2:.0f}" y="{(y1 + y2) / 2 - 5:.0f}" text-anchor="middle" fill="{_MUTED}" '
        f'font-size="11">{_text(_cut(tensor, 12))}</text>'
    )


def _drawn(box: _Box) -> str:
    lines = [
        f'<text x="{box.x + box.width / 2:.0f}" y="{box.y + 19 + _LINE * at:.0f}" text-anchor="middle" '
        f'fill="{_INK if not at else _MUTED}"{"" if at else _BOLD}>{_text(line)}</text>'
        for at, line in enumerate(box.lines)
    ]
    radius = 6 if box.kind == "step" else 16
    return (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="{radius}" '
        f'fill="{_FILLS[box.kind]}" stroke="{_EDGE}"/>' + "".join(lines)
    )


_BOLD: Final = ' font-weight="600"'


def _cut(text: str, most: int = _MOST_LETTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> str:
    """Text of a file as XML: what no XML may have is left out."""
    return escape("".join(letter for letter in text if letter.isprintable()))
