"""The table printed at start: what is served, and how."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime

from toutates.interpreter import describe_interpreter
from toutates.models.table import ModelState, ModelTable, VersionEntry
from toutates.placement import Placement
from toutates.protocol.signature import Signature, TensorSpec
from toutates.topology import Topology, format_cpu_list

__all__ = ["placement_table", "startup_table"]

_HEADINGS = ("MODEL", "VERSION", "STATE", "INPUTS", "OUTPUTS", "BATCH", "CAPACITY", "EXECUTORS")


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


def placement_table(placement: Placement, table: ModelTable, intra_threads: int) -> str:
    """One line per role: its threads and the CPUs they are pinned to; a single line where they are not.

    Args:
        placement: the plan.
        table: what was loaded, which tells how many executors there are.
        intra_threads: ``--ort-intra-threads``.
    """
    all_settings = [version.settings for version in table.served()]
    executors = sum(settings.num_executors for settings in all_settings)
    pool_threads = sum(
        settings.num_executors * ((settings.session.intra_threads or intra_threads) - 1) for settings in all_settings
    )
    if not placement.pinned:
        counts = {"worker": placement.processing_cores, "executor": executors, "intra-op thread": pool_threads}
        shown = [f"{count} {role}{'' if count == 1 else 's'}" for role, count in counts.items() if count]
        return f"{', '.join(shown)}; threads are not pinned to cores"
    roles = [
        ("manager", 1, placement.manager),
        ("executor", executors, placement.executors),
        ("worker", placement.processing_cores, placement.workers),
        ("intra-op", pool_threads, placement.intra_op),
    ]
    rows = [(role, str(threads), _places(cpus, placement.topology)) for role, threads, cpus in roles if cpus]
    return "\n".join(_aligned([("ROLE", "THREADS", "CORES (NUMA NODE)"), *rows]))


def _places(cpus: Sequence[int], topology: Topology) -> str:
    """``0-3,8 (0), 16-19 (1)``, in the order of the plan."""
    of_node: dict[int, list[int]] = {}
    for cpu in cpus:
        of_node.setdefault(topology.node_of(cpu), []).append(cpu)
    return ", ".join(f"{format_cpu_list(own)} ({node})" for node, own in of_node.items())


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


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
