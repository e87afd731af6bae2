"""The executors of a version: what the arbiter has to know of them for their turns, and their end without any."""

from __future__ import annotations

from toutates.engine.around import AroundServable
from toutates.engine.batched import BatchedServable
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.sequences.servable import SequenceServable
from toutates.engine.servable import Servable
from toutates.engine.turns.arbiter import Arbiter, Member
from toutates.engine.turns.resources import EXECUTION_COUNT, Limit, Need, Resources
from toutates.models.config.settings import ModelSettings, ResourceNeed

__all__ = ["EXECUTION_COUNT", "Arbiter", "Limit", "Resources", "end_without_run", "turns_of"]


def turns_of(servable: Servable, settings: ModelSettings, arbiter: Arbiter) -> Member | None:
    """What the arbiter knows of a version, whose executors take turns with those of others; None if it has none.

    Raises:
        ModelLoadError: there will never be enough of a resource.
    """
    parts = _batched(servable)
    executors = [executor for part in parts for executor in part.executors]
    if not executors:
        return None
    supertensor = parts[0].supertensor
    rated = range(len(executors)) if settings.rate_limits else ()
    limits = [settings.rate_limit(number) for number in rated]
    member = Member(
        executors,
        on_cpu=all([executor.on_cpu for executor in executors]),
        quick_ns=supertensor.quick_ns,
        due_ns=supertensor.deadlines.due_ns if isinstance(supertensor, DeadlineSuperTensor) else None,
        needs=[tuple(map(_need, limit.resources)) for limit in limits],
        priorities=[limit.priority for limit in limits],
        devices=[_device(settings.device(number)) for number in rated],
    )
    arbiter.add(member)
    return member


def end_without_run(servable: Servable) -> None:
    """End a servable that nobody has run, and will: its executors close what they have, such as processes. Blocks."""
    for part in _batched(servable):
        part.close()
        for executor in part.executors:
            executor.run()
    servable.free()


def _batched(servable: Servable) -> list[BatchedServable]:
    """What has executors of a servable."""
    if isinstance(servable, BatchedServable):
        return [servable]
    if isinstance(servable, AroundServable):
        return _batched(servable.computing)
    if isinstance(servable, SequenceServable):
        return [part for instance in servable.instances for part in _batched(instance)]
    return []


def _need(resource: ResourceNeed) -> Need:
    return Need(resource.name, resource.count, resource.is_global)


def _device(device: str) -> int:
    """The number of a device; that of the CPU is 0, as with Triton."""
    return int(device.removeprefix("gpu:")) if device.startswith("gpu:") else 0
