"""An ensemble as the table of models has it: a servable whose requests become calls of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from toutates.backends.ensemble.agreement import disagreements
from toutates.backends.ensemble.binding import Binding
from toutates.backends.ensemble.graph import Graph
from toutates.backends.ensemble.levels import find_levels
from toutates.backends.ensemble.port import EnsemblePort
from toutates.backends.ensemble.state import Bounds, EnsembleState
from toutates.engine.counters import VersionCounters
from toutates.engine.servable import Consumer, Host
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.models.table import Member, Need, ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature

__all__ = ["EnsembleServable"]


class EnsembleServable:
    """A version of an ensemble (``engine.servable.Servable`` and ``models.table.Dependent``).

    Args:
        graph: of the ensemble.
        bounds: what may be under way in it.
        config: what ModelConfig answers: whether it is decoupled is written there once the members are known.
    """

    def __init__(self, graph: Graph, bounds: Bounds, config: ModelConfig | None = None) -> None:
        self.graph = graph
        self._config = config
        #: None while no members were known
        self._decoupled: bool | None = None
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
    def joins(self) -> bool:
        """See ``Servable``. It follows the members."""
        binding = self.state.binding
        return binding is None or binding.joins

    @property
    def ready(self) -> bool:
        """See ``Servable``. It follows the members."""
        return self.state.binding is not None

    def takes_parameters(self) -> bool:
        """Whether a member reads what requests say beside their tensors."""
        binding = self.state.binding
        return binding is not None and binding.asks

    def takes_turns(self) -> bool:
        """Whether requests of a member take turns by their callers."""
        binding = self.state.binding
        return binding is not None and binding.takes_turns

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
            responses=state.responses.statistics(),
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

    @property
    def decoupled(self) -> bool:
        """See ``Dependent``."""
        return bool(self._decoupled)

    def decoupled_by(self, members: Mapping[Need, Member]) -> bool:
        """See ``Dependent``."""
        return bool(find_levels(self.graph, members)[0].sources)

    def disagreements(self, members: Mapping[Need, Member]) -> list[str]:
        """See ``Dependent``."""
        found = disagreements(self.graph, members)
        # Workers have made plans for one or the other.
        if not found and self._decoupled not in (None, self.decoupled_by(members)):
            was, is_now = ("a decoupled model", "none is") if self._decoupled else ("no decoupled model", "one is")
            found.append(f"ensemble {self.graph.model} was loaded with {was}, and now {is_now}; load it again")
        return found

    def bind(self, members: Mapping[Need, ServedVersion] | None) -> None:
        """See ``Dependent``."""
        bound = self.state.binding
        if members is None:
            self.state.bind(None)
        elif bound is None or bound.members != members:
            levels, _ = find_levels(self.graph, {need: version.member for need, version in members.items()})
            self._decoupled = bool(levels.sources)
            if self._config is not None:
                self._config.model_transaction_policy.decoupled = self._decoupled
            self.state.bind(Binding(self.graph, members, levels))
