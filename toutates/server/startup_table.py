"""The tables that the server prints at its start: the models, and the placement of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import onnxruntime

from toutates.models.table import ModelState, ModelTable, VersionEntry
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.interpreter import describe_interpreter
from toutates.system.placement import Placement
from toutates.system.text import printable
from toutates.system.topology import Topology, format_cpu_list

__all__ = ["MOST_ROWS", "placement_records", "placement_table", "startup_records", "startup_table"]

#: Versions that the table lists one by one.
MOST_ROWS: Final = 200
_HEADINGS = ("MODEL", "VERSION", "STATE", "INPUTS", "OUTPUTS", "BATCH", "CAPACITY", "EXECUTORS")


def startup_table(table: ModelTable, providers: list[str], seconds: float, why_empty: str = "") -> str:
    """The table of models: a line about the process, then one per model version.

    Args:
        table: of the models.
        providers: execution providers, by priority.
        seconds: time that loading took.
        why_empty: why there are no models, if the repositories are the reason.
    """
    rows: list[tuple[str, ...]] = [_HEADINGS]
    shown, summary = _chosen(table)
    for row in shown:
        first, *others = row[3].splitlines() or [""]
        rows.append((*row[:3], first, *row[4:]))
        rows += [("", "", "", other, *[""] * 4) for other in others]
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    # Reasons of versions that are not served may be long. They end their lines, so they widen no column.
    widths[3] = max((len(row[3]) for row in rows if row[4]), default=0)
    lines = [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(rows) == 1:
        lines = [] if summary else [why_empty or table.unready_reason or "no models"]
    head = (
        f"{describe_interpreter()}; onnxruntime {onnxruntime.__version__}, {', '.join(providers)}; "
        f"loaded in {seconds:.1f} s"
    )
    return "\n".join([head, *lines, *([summary] if summary else [])])


def startup_records(
    table: ModelTable, providers: list[str], seconds: float, why_empty: str = ""
) -> list[dict[str, object]]:
    """The same as records: one of the process, then one per model version, or per line of the reason why not."""
    process: dict[str, object] = {
        "event": "the models are loaded" if table.models else (why_empty or table.unready_reason or "no models"),
        "interpreter": describe_interpreter(),
        "onnxruntime": onnxruntime.__version__,
        "providers": ", ".join(providers),
        "seconds": round(seconds, 1),
    }
    records = [process]
    shown, summary = _chosen(table)
    if summary:
        process["versions"] = summary
    for row in shown:
        served = bool(row[4])
        names = ("model", "version", "state", "inputs", "outputs", "batch", "capacity", "executors")
        if served:
            records.append({"event": "model version", **dict(zip(names, row, strict=True))})
        else:
            start = {"event": "model version", **dict(zip(names[:3], row[:3], strict=True))}
            records += [{**start, "reason": line} for line in row[3].splitlines() or [""]]
    return records


def _chosen(table: ModelTable) -> tuple[list[tuple[str, ...]], str]:
    """The rows that are printed, and what is said of the others; "" where all are.

    Where there are very many versions, those that are not ready are printed: of the others nobody would read a list.
    """
    entries = [entry for model in table.models.values() for entry in model.versions.values()]
    problems = sum(bool(model.problem) for model in table.models.values())
    count = len(entries) + problems
    if count <= MOST_ROWS:
        return _rows(table), ""
    ready = sum(entry.state is ModelState.READY for entry in entries)
    rows = list(islice(_each_row(table, only_problems=True), MOST_ROWS))
    more = f", of which these are {len(rows)}" if len(rows) < count - ready else ""
    unready = f"{count - ready} are not{more}" if count > ready else "none is not"
    return (
        rows,
        f"{count} versions of {len(table.models)} models: {ready} are ready, {unready}; RepositoryIndex has all",
    )


def _rows(table: ModelTable) -> list[tuple[str, ...]]:
    """A row per model version, in the order of the headings; if it is not served, with the reason for the inputs."""
    return list(_each_row(table))


def _each_row(table: ModelTable, *, only_problems: bool = False) -> Iterator[tuple[str, ...]]:
    for model in table.models.values():
        if model.problem:
            yield (model.name, "-", ModelState.UNAVAILABLE.value, model.problem, *[""] * 4)
        for entry in model.versions.values():
            if not only_problems or entry.state is not ModelState.READY:
                yield _row(model.name, entry)


def placement_table(placement: Placement, table: ModelTable, executor_threads: int = 0) -> str:
    """The table of threads: a line per role with its CPUs, or a single line if threads are not pinned.

    Args:
        placement: the plan.
        table: of the models, whose executors are counted, as far as they have threads of their own.
        executor_threads: that the others share.
    """
    if not placement.pinned:
        counts = {"worker": placement.processing_cores} | _thread_counts(table, executor_threads)
        shown = [f"{count} {role}{'' if count == 1 else 's'}" for role, count in counts.items() if count]
        return f"{', '.join(shown)}; threads are not pinned to cores"
    return "\n".join(_aligned([("ROLE", "THREADS", "CORES (NUMA NODE)"), *_roles(placement, table, executor_threads)]))


def placement_records(placement: Placement, table: ModelTable, executor_threads: int = 0) -> list[dict[str, object]]:
    """The same as records: one per role, or a single one if threads are not pinned."""
    if not placement.pinned:
        counts = {"worker": placement.processing_cores} | _thread_counts(table, executor_threads)
        named = {f"{role.replace('-', '_').replace(' ', '_')}s": count for role, count in counts.items()}
        return [{"event": "threads are not pinned to cores", **named}]
    return [
        {"event": "threads are pinned to cores", "role": role, "threads": int(threads), "cores": cores}
        for role, threads, cores in _roles(placement, table, executor_threads)
    ]


def _thread_counts(table: ModelTable, executor_threads: int) -> dict[str, int]:
    own = intra_op = pooled = 0
    for version in table.served():  # one after the other: there may be very many, with hundreds of numbers each
        one = version.servable.statistics()
        own += 0 if one.pooled else one.executors
        pooled = executor_threads if one.pooled else pooled
        intra_op += one.pool_threads
    return {"executor": own + pooled, "intra-op thread": intra_op}


def _roles(placement: Placement, table: ModelTable, executor_threads: int) -> list[tuple[str, str, str]]:
    """Role, number of threads, and CPUs, of each role that has CPUs of its own."""
    counts = _thread_counts(table, executor_threads)
    roles = [
        ("manager", 1, placement.manager),
        ("executor", counts["executor"], placement.executors),
        ("worker", placement.processing_cores, placement.workers),
        ("intra-op", counts["intra-op thread"], placement.intra_op),
    ]
    return [(role, str(threads), _places(cpus, placement.topology)) for role, threads, cpus in roles if cpus]


def _places(cpus: Sequence[int], topology: Topology) -> str:
    """CPUs and their NUMA nodes, ``0-3,8 (0), 16-19 (1)``, in the order of the plan."""
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
    signature, statistics = served.signature, served.servable.statistics()
    return (
        model,
        str(entry.number),
        entry.state.value,
        _tensors(signature, signature.inputs),
        _tensors(signature, signature.outputs),
        str(statistics.batch_size) if signature.batched else "none",
        str(statistics.occupancy.capacity),
        str(statistics.executors),
    )


def _tensors(signature: Signature, tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{tensor.name} {tensor.datatype.name}{list(signature.wire_shape(tensor))}".replace(", ", ",")
        for tensor in tensors
    )
