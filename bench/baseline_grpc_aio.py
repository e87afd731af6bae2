"""The server that most Python teams would write: grpc.aio and ONNX Runtime.

    python -m bench.baseline_grpc_aio --model-repository DIR --grpc-addr 127.0.0.1:8001

ONNX Runtime runs on the event loop, because handing microseconds of work to a thread pool would only cost more.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from bench.baseline_service import CHANNEL_OPTIONS, ModelServer, parse_arguments


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # grpcio ships no types
    def __init__(self, models: ModelServer) -> None:
        self._models = models

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return self._models.server_metadata(request)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        return self._models.model_metadata(request)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return self._models.model_config(request)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        return self._models.statistics(request)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        return self._models.infer(request)


async def main(models: type[ModelServer] = ModelServer) -> None:
    arguments = parse_arguments()
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    servicer = Servicer(models(arguments.model_repository))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(arguments.grpc_addr)
    await server.start()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await server.stop(grace=1)


if __name__ == "__main__":
    asyncio.run(main())
