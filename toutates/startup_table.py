"""The table printed at start: what is served, and how."""

from __future__ import annotations

import platform
import sys

import onnxruntime

from toutates.models.table import ModelState, ModelTable, VersionEntry
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["describe_interpreter", "startup_table"]

_HEADINGS = ("MODEL", "VERSION", "STATE", "INPUTS", "OUTPUTS", "BATCH", "CAPACITY", "EXECUTORS")


def describe_interpreter() -> str:
    """The interpreter, its build, and whether it runs with the GIL."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    gil = "with the GIL" if is_gil_enabled() else "without the GIL"
    return f"{platform.python_implementation()} {platform.python_version()} {gil}"


def startup_table(table: ModelTable, providers: list[str], seconds: float) -> str:
    """One line per model version, under a line about the process.

    Args:
        table: what was loaded.
        providers: execution providers, by priority.
        seconds: that loading took.
    """
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for model in table.models.values():
        if model.problem:
            rows.append((model.name, "-", ModelState.UNAVAILABLE.value, model.problem, *[""] * 4))
        rows += [_row(model.name, entry) for entry in model.versions.values()]
    rows = [tuple(map(_one_line, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    # The reason of a version that is not served may be long; it is the last thing on its line.
    widths[3] = max((len(row[3]) for row in rows if row[4]), default=0)
    lines = [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head = (
        f"{describe_interpreter()}; onnxruntime {onnxruntime.__version__}, {', '.join(providers)}; "
        f"loaded in {seconds:.1f} s"
    )
    return "\n".join([head, *lines])


def _row(model: str, entry: VersionEntry) -> tuple[str, ...]:
    served = entry.served
    if served is None:
        return (model, str(entry.number), entry.state.value, entry.reason, *[""] * 4)
    signature, settings = served.signature, served.settings
    return (
        model,
        str(entry.number),
        entry.state.value,
        _tensors(signature, signature.inputs),
        _tensors(signature, signature.outputs),
        str(settings.batch_size) if signature.batched else "none",
        str(settings.capacity),
        str(settings.num_executors),
    )


def _one_line(text: str) -> str:
    """Reasons may have several lines, and a directory may be called anything."""
    joined = "; ".join(text.splitlines())
    return "".join(letter if letter.isprintable() else "?" for letter in joined)


def _tensors(signature: Signature, tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{tensor.name} {tensor.datatype.name}{list(signature.wire_shape(tensor))}".replace(", ", ",")
        for tensor in tensors
    )
