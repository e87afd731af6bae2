"""An ensemble as the table of models has it: a servable whose requests become calls of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from toutates.backends.ensemble.agreement import disagreements
from toutates.backends.ensemble.binding import Binding
from toutates.backends.ensemble.graph import Graph
from toutates.backends.ensemble.port import EnsemblePort
from toutates.backends.ensemble.state import Bounds, EnsembleState
from toutates.engine.counters import VersionCounters
from toutates.engine.servable import Consumer, Host
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.models.table import Member, Need, ServedVersion
from toutates.protocol.signature import Signature

__all__ = ["EnsembleServable"]


class EnsembleServable:
    """A version of an ensemble (``engine.servable.Servable`` and ``models.table.Dependent``).

    Args:
        graph: of the ensemble.
        bounds: what may be under way in it.
    """

    def __init__(self, graph: Graph, bounds: Bounds) -> None:
        self.graph = graph
        self.state = EnsembleState(graph, bounds)

    # --- as a servable -----------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """See ``Servable``."""
        return self.graph.signature

    @property
    def counters(self) -> VersionCounters:
        """See ``Servable``."""
        return self.state.counters

    @property
    def ready(self) -> bool:
        """See ``Servable``. It follows the members."""
        return self.state.binding is not None

    def takes_parameters(self) -> bool:
        """Whether a member reads what requests say beside their tensors."""
        binding = self.state.binding
        return binding is not None and binding.asks

    def port(self, consumer: Consumer) -> EnsemblePort:
        """See ``Servable``."""
        self.counters.workers.append(consumer.counters)
        return EnsemblePort(self.state, consumer)

    def statistics(self) -> VersionStatistics:
        """See ``Servable``. What is under way is counted in groups of requests."""
        state, counters = self.state, self.counters
        groups = state.groups
        return VersionStatistics(
            requests=counters.requests(),
            batches=counters.batches(),
            batch_durations=counters.batch_durations(),
            batch_runs=counters.batch_runs(),
            occupancy=Occupancy(
                in_flight=groups,
                running=groups,
                capacity=state.bounds.rows,
                waiting=0,
                rows=state.rows,
                row_capacity=state.bounds.rows,
                in_flight_bytes=state.memory_bytes,
                capacity_bytes=state.bounds.memory_bytes,
                idle_executors=0,
                lanes=0,
                spare_bytes=0,
                buffer_bytes=0,
            ),
            batch_size=self.graph.batch_size or 1,
            executors=0,
        )

    def describe(self, most: int) -> list[str]:
        """See ``Servable``."""
        state = self.state
        lines = [
            f"ensemble: {state.groups} groups of requests with {state.rows} rows and {state.memory_bytes} bytes of "
            f"tensors under way; {'bound to its members' if self.ready else 'not bound: its members are not there'}"
        ]
        for step in self.graph.steps[:most]:
            version = "the newest version" if step.version is None else f"version {step.version}"
            lines.append(f"step {step.number}: {step.model}, {version}")
        return lines

    async def run(self, host: Host) -> None:
        """See ``Servable``. It has no threads; returns once it is closed and has answered everything."""
        token = trio.lowlevel.current_trio_token()
        idle = trio.Event()

        def tell() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(idle.set)

        self.state.on_idle(tell)
        await idle.wait()

    def close(self, *, workers_ended: bool = False) -> None:
        """See ``Servable``. What no worker's thread is left for has not begun, and nobody waits for it."""
        self.state.close()

    def free(self) -> None:
        """See ``Servable``."""
        self.bind(None)

    # --- as what is made of others -----------------------------------------------------------------------------------

    @property
    def needs(self) -> Sequence[Need]:
        """See ``Dependent``."""
        return self.graph.needs

    def disagreements(self, members: Mapping[Need, Member]) -> list[str]:
        """See ``Dependent``."""
        return disagreements(self.graph, members)

    def bind(self, members: Mapping[Need, ServedVersion] | None) -> None:
        """See ``Dependent``."""
        bound = self.state.binding
        if members is None:
            self.state.bind(None)
        elif bound is None or bound.members != members:
            self.state.bind(Binding(self.graph, members))
