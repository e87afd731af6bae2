"""A version whose answers leave in the order of its requests, and its ports (``engine.servable``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toutates.engine.around import AroundServable
from toutates.engine.lane import Piece, RowShapes
from toutates.engine.ordered.order import Order, Place
from toutates.engine.servable import Buffer, Consumer, Content, Port, Servable, Way

__all__ = ["OrderedServable"]


class OrderedServable(AroundServable):
    """Any servable; only its ports are others.

    Args:
        servable: what computes.
        order: of its requests.
    """

    def __init__(self, servable: Servable, order: Order) -> None:
        super().__init__(servable)
        self._order = order

    def port(self, consumer: Consumer) -> Port:
        """See ``Servable``."""
        return _OrderedPort(self._servable, self._order, consumer)

    def describe(self, most: int) -> list[str]:
        """See ``Servable``."""
        places, rows, held = self._order.statistics()
        line = f"answers in order: {places} requests of {rows} rows are not answered; {held} bytes wait for their turn"
        return [line, *self._servable.describe(most)]


class _OrderedPort:
    """See ``Port``. A request goes on with its place for a context."""

    def __init__(self, servable: Servable, order: Order, consumer: Consumer) -> None:
        self._order = order
        self._consumer = consumer
        self.counters = consumer.counters
        sequence, released = consumer.sequence, consumer.released
        self._port = servable.port(
            replace(
                consumer,
                finish=order.take,
                finish_here=order.take,
                is_wanted=lambda place, by_ns: consumer.is_wanted(place.context, by_ns),
                about=lambda place: consumer.about(place.context),
                may_have_left=lambda place: consumer.may_have_left(place.context),
                unread_bytes=lambda place: consumer.unread_bytes(place.context),
                caller=lambda place: consumer.caller(place.context),
                sequence=None if sequence is None else lambda place: sequence(place.context),
                parameters=lambda place: consumer.parameters(place.context),
                released=None if released is None else lambda place: released(place.context),
            )
        )

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> Way:
        """See ``Port``."""
        return self._port.way(row_shapes, outputs)

    def add_packed(self, way: Any, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``."""
        place = self._begin(context, rows)
        try:
            self._port.add_packed(way, rows, place, buffer, spans)
        except BaseException:
            self._order.withdraw(place)
            raise

    def add_contents(self, way: Any, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        place = self._begin(context, rows)
        try:
            self._port.add_contents(way, rows, place, contents)
        except BaseException:
            self._order.withdraw(place)
            raise

    def add_gathered(self, way: Any, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0) -> None:
        """See ``Port``."""
        place = self._begin(context, rows)
        try:
            self._port.add_gathered(way, rows, place, arrays, held_bytes)
        except BaseException:
            self._order.withdraw(place)
            raise

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``."""
        self._port.commit(inline=inline)

    def _begin(self, context: Any, rows: int) -> Place:
        return self._order.begin(self._consumer, context, rows)
