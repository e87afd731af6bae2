"""grpcio's synchronous server with its thread pool, and ONNX Runtime.

    python -m bench.baseline_grpc_threads --model-repository DIR --grpc-addr 127.0.0.1:8001

Ten threads, as in grpcio's own examples.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from bench.baseline_service import CHANNEL_OPTIONS, ModelServer, parse_arguments

_THREADS = 10


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # grpcio ships no types
    def __init__(self, models: ModelServer) -> None:
        self._models = models

    def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return self._models.server_metadata(request)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        return self._models.model_metadata(request)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        return self._models.model_config(request)

    def ModelStatistics(self, request: Any, context: Any) -> Any:
        return self._models.statistics(request)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        return self._models.infer(request)


def main() -> None:
    arguments = parse_arguments()
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=CHANNEL_OPTIONS)
    models = ModelServer(arguments.model_repository)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(models), server)
    server.add_insecure_port(arguments.grpc_addr)
    # Before any thread starts, so that none is interrupted by it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    server.start()
    signal.sigwait((signal.SIGINT, signal.SIGTERM))
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
