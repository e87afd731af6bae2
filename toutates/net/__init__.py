"""What drives connections: the worker with its sockets, TLS, housekeeping, and gRPC as it is served by one.

A gRPC service is a table of methods::

    def echo(call: Call) -> None:
        call.reply(call.message)

    worker = Worker("worker-0", Limits())
    service = GrpcService(worker, method_table([Method("/test.Echo/Unary", unary=echo)]))
    trio.run(worker.run, Listening(listening_socket, service))

Cleartext with prior knowledge, or TLS (``Worker.tls``). Services of other protocols have the interface of
``connection.Service``.
"""

from __future__ import annotations

from toutates.net.accepting import Listening
from toutates.net.grpc.service import GrpcService
from toutates.net.grpc.streaming import ServerStream
from toutates.net.tls import describe_tls_error, harden_tls
from toutates.net.worker import Worker

__all__ = ["GrpcService", "Listening", "ServerStream", "Worker", "describe_tls_error", "harden_tls"]
