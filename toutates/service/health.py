"""grpc.health.v1.Health: Check, and Watch as a stream of changes."""

from __future__ import annotations

from contextlib import aclosing

import trio

from toutates.h2grpc import GrpcError, Method, ServerStream, Status
from toutates.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from toutates.service.readiness import Readiness
from toutates.service.unary import unary

__all__ = ["health_methods"]

_CHECK = "/grpc.health.v1.Health/Check"
_WATCH = "/grpc.health.v1.Health/Watch"


def health_methods(readiness: Readiness) -> list[Method]:
    """The service. As with Triton, the name of the service asked for does not matter: there is one server.

    Args:
        readiness: the worker's.
    """

    def status(serving: bool) -> HealthCheckResponse:
        return HealthCheckResponse(status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING)

    def check(request: HealthCheckRequest) -> HealthCheckResponse:
        return status(readiness.serving.value)

    async def watch(stream: ServerStream) -> None:
        if await stream.receive() is None:
            raise GrpcError(Status.INVALID_ARGUMENT, "Watch takes one HealthCheckRequest, got none")
        async with trio.open_nursery() as nursery:

            async def end_at_exit() -> None:
                await readiness.exiting.wait_value(lambda exiting: exiting)
                # The change to NOT_SERVING goes out before the call ends.
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_at_exit)
            # Closed by hand: a call that is cancelled while it sends leaves it in the middle.
            async with aclosing(readiness.serving.eventual_values()) as changes:
                async for serving in changes:
                    await stream.send(status(serving).SerializeToString())
        raise GrpcError(Status.UNAVAILABLE, "server is shutting down")

    return [
        Method(_CHECK, unary=unary(HealthCheckRequest, check)),
        Method(_WATCH, stream=watch),
    ]
