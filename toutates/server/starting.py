"""What one worker answers until the server has started, and how that gives way to what it serves then."""

from __future__ import annotations

import time

from toutates.api.grpc.statuses import STATUSES
from toutates.api.starting import STARTING, StartHandler, form_of_rest, form_of_torchserve
from toutates.h2grpc import GrpcError, NoMethods, Status
from toutates.net import GrpcService, Worker
from toutates.net.first_bytes import ByFirstBytes
from toutates.net.http1.service import Handler, HttpService
from toutates.net.http2.plain import PlainHttp
from toutates.server.options import Options

__all__ = ["StartServices"]


class StartServices:
    """The services of the ports of REST and TorchServe: the same before and after the start has ended.

    Args:
        worker: whose they are.
        options: of the server.

    Attributes:
        grpc: the service of HTTP/2, beside which those are made that serve.
        http: serves HTTP/1.1 to the connections of REST's port, and of gRPC's later.
        port: the service of REST's listener.
        management: that of TorchServe's management API.
    """

    def __init__(self, worker: Worker, options: Options) -> None:
        self._worker, date, began_s = worker, worker.date.field, time.monotonic()
        form = form_of_rest(options.text, torchserve=options.torchserve is not None)
        rest = StartHandler(form, began_s, options.rest.cross_origin)
        management = StartHandler(form_of_torchserve, began_s)
        refused = NoMethods(GrpcError(Status.UNAVAILABLE, STARTING))
        self.grpc = grpc = GrpcService(worker, refused, options.grpc_compression, STATUSES, date, self._plain(rest))
        half_close = options.rest.half_close
        self.http = HttpService(worker, rest, date, half_close=half_close)
        self.port = ByFirstBytes(grpc, self.http, self.http)
        self._management = HttpService(worker, management, date, half_close=half_close)
        self.management = ByFirstBytes(grpc.beside(self._plain(management)), self._management, self._management)

    def _plain(self, handler: Handler) -> PlainHttp:
        """Answers the requests over HTTP/2 as those over HTTP/1.1."""
        return PlainHttp(self._worker, handler)

    def give_way(self, grpc: GrpcService, rest: Handler, management: Handler | None) -> None:
        """Have all requests to come answered as those of a server that serves. On the worker's thread.

        Connections go on: a request that has begun to come is answered as it would have been, the next one is served.

        Args:
            grpc: the service of HTTP/2 on REST's port, made beside that of the start.
            rest: answers the requests of REST.
            management: those for TorchServe's management API; None where it has no port.
        """
        self._give(self.port, grpc, self.http, rest)
        if management is not None:
            self._give(self.management, grpc.beside(self._plain(management)), self._management, management)

    def _give(self, port: ByFirstBytes, grpc: GrpcService, http: HttpService, handler: Handler) -> None:
        before, port.http2 = port.http2, grpc
        http.answer_by(handler)
        for transport in self._worker.transports.open.values():
            if transport.service is before:
                grpc.take(transport)
