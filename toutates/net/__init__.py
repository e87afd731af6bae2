"""What drives connections: the worker with its sockets, TLS, streams of handlers, and housekeeping.

A service is a table of methods::

    def echo(call: Call) -> None:
        call.reply(call.message)

    worker = Worker("worker-0", Limits())
    worker.methods = method_table([Method("/test.Echo/Unary", unary=echo)])
    trio.run(worker.run, listening_socket)

Cleartext with prior knowledge, or TLS (``Worker.tls``).
"""

from __future__ import annotations

from toutates.net.streaming import ServerStream
from toutates.net.tls import describe_tls_error, harden_tls
from toutates.net.worker import Worker

__all__ = ["ServerStream", "Worker", "describe_tls_error", "harden_tls"]
