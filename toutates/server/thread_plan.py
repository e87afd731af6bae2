"""How many workers there are, and on which CPUs threads run: from the options to a ``Placement``."""

from __future__ import annotations

from toutates.infer.inflight import FLAG as INFLIGHT_FLAG
from toutates.server.options import Options
from toutates.system.cpu_quota import usable_cpus
from toutates.system.errors import ConfigurationError
from toutates.system.interpreter import gil_enabled
from toutates.system.placement import Placement, default_processing_cores, place
from toutates.system.topology import allowed_cpus, read_topology

__all__ = ["plan_threads"]


def plan_threads(options: Options) -> Placement:
    """Where the server's threads will run.

    Raises:
        ConfigurationError: there are too few CPUs to pin threads, or fewer requests may be in flight than there are
            workers.
    """
    topology = read_topology(options.cpu_pinning or allowed_cpus())
    pinned = options.cpu_pinning is not None
    executors, intra_threads = options.executor_cpus, options.ort_intra_threads
    workers = options.processing_cores
    if workers is None:
        workers = default_processing_cores(
            usable_cpus(topology.cpus),
            executor_cpus=executors,
            intra_threads=intra_threads,
            pinned=pinned,
            gil=gil_enabled(),
        )
    if options.max_inflight_requests is not None and options.max_inflight_requests < workers:
        raise ConfigurationError(
            f"is split over {workers} workers, each of which needs one request at least",
            key=INFLIGHT_FLAG,
            value=options.max_inflight_requests,
            remedy=f"raise it to {workers} or more, or lower --processing-cores",
        )
    return place(
        topology, executor_cpus=executors, processing_cores=workers, intra_threads=intra_threads, pinned=pinned
    )
