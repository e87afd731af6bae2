"""What of the server's settings each of its processes gets (``--processes``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from toutates.infer.inflight import FLAG as INFLIGHT_FLAG
from toutates.infer.inflight import share
from toutates.infer.regions import FLAG as REGIONS_FLAG
from toutates.server.options import Options, TorchServeOptions
from toutates.server.thread_plan import plan_threads
from toutates.system.address import INFERENCE_PORTS, Address
from toutates.system.cpu_quota import usable_cpus
from toutates.system.errors import ConfigurationError
from toutates.system.interpreter import gil_enabled
from toutates.system.memory import available_memory
from toutates.system.placement import default_processing_cores
from toutates.system.topology import Topology, allowed_cpus, read_topology

__all__ = ["count_of", "shared_options"]

_FLAG = "--processes"
#: CPUs that a process needs whose threads are pinned: for the manager, an executor and a worker.
_PINNED_CPUS = 3


def count_of(options: Options) -> int:
    """How many processes there are: as many as was asked for; with "auto" one per CPU, or per three that are pinned."""
    if options.processes:
        return options.processes
    cpus = usable_cpus(options.cpu_pinning or None)
    return max(1, cpus // _PINNED_CPUS if options.cpu_pinning is not None else cpus)


def shared_options(options: Options, grpc_addr: Address, http_addr: Address | None) -> list[Options]:
    """The options of each process.

    What bounds the server as a whole is divided: connections, buffered bytes, the response cache, requests in flight,
    workers, and the CPUs to pin threads to. Everything else each process has for itself.

    Args:
        options: of the server.
        grpc_addr, http_addr: as they are bound, with real ports.

    Raises:
        ConfigurationError: something is too small to be divided.
    """
    count = count_of(options)
    if options.allow_client_shm and count > 1:
        raise ConfigurationError(
            f"does not go with {_FLAG} above 1: a client registers a region with the process that has its connection, "
            "and the other processes would not know it",
            key=REGIONS_FLAG,
            remedy=f"leave {_FLAG} out, or leave {REGIONS_FLAG} out",
        )
    for flag, total in (
        ("--processing-cores", options.processing_cores),
        (INFLIGHT_FLAG, options.max_inflight_requests),
    ):
        if total is not None and total < count:
            raise ConfigurationError(
                f"is divided among {count} processes, each of which needs one at least",
                key=flag,
                value=total,
                remedy=f"raise it to {count} or more, or lower {_FLAG}",
            )
    pinned = _divided(options.cpu_pinning, count)
    workers = options.processing_cores or count * _default_workers(options, count)
    inflight = options.max_inflight_requests
    parts = [
        replace(
            options,
            processes=1,
            shared_ports=INFERENCE_PORTS,
            grpc_addr=grpc_addr,
            http_addr=http_addr,
            metrics_addr=None,
            processing_cores=share(workers, count, number),
            cpu_pinning=pinned[number],
            max_concurrent_connections=max(1, share(options.max_concurrent_connections, count, number)),
            max_buffered_bytes=max(1, (options.max_buffered_bytes or available_memory() // 2) // count),
            max_inflight_requests=None if inflight is None else share(inflight, count, number),
            response_cache_bytes=options.response_cache_bytes // count,
            model_memory=None if options.model_memory is None else max(1, options.model_memory // count),
            warnings=options.warnings if number == 0 else (),
            torchserve=_torchserve(options.torchserve, number),
        )
        for number in range(count)
    ]
    for part in parts:
        plan_threads(part)  # which refuses what does not go together, once for all
    return parts


def _torchserve(options: TorchServeOptions | None, number: int) -> TorchServeOptions | None:
    """TorchServe's APIs: the first process serves the management API, and has its changes made in all."""
    return options if options is None or number == 0 else replace(options, management_addr=None)


def _default_workers(options: Options, count: int) -> int:
    """Workers of each process where nobody says how many."""
    cpus = usable_cpus(options.cpu_pinning or None) // count
    return default_processing_cores(
        cpus,
        executor_cpus=options.executor_cpus,
        intra_threads=options.ort_intra_threads,
        pinned=options.cpu_pinning is not None,
        gil=gil_enabled(),
    )


def _divided(pinning: tuple[int, ...] | None, count: int) -> Sequence[tuple[int, ...] | None]:
    """The CPUs of each process, those of a node and of a core together as far as that goes."""
    if pinning is None:
        return [None] * count
    cpus = _by_place(read_topology(pinning or allowed_cpus()))
    bounds = [len(cpus) * number // count for number in range(count + 1)]
    parts = [tuple(sorted(cpus[first:end])) for first, end in pairwise(bounds)]
    if not all(parts):
        raise ConfigurationError(
            f"has fewer CPUs than there are processes ({count})",
            key="--cpu-pinning",
            remedy=f"give it more, or lower {_FLAG}",
        )
    return parts


def _by_place(topology: Topology) -> list[int]:
    nodes = sorted(topology.nodes, key=lambda node: (node.cores[0].socket, node.number))
    return [cpu for node in nodes for core in node.cores for cpu in core.cpus]
