"""The RPCs of shared memory: clients register regions by name, and requests then name them.

Registering and unregistering opens and closes what belongs to a client, who can make that take long, and a GPU has CUDA
start there for the first region. So no worker's thread does it.
"""

from __future__ import annotations

from typing import Any

from toutates.access.callers import Caller
from toutates.infer.regions import Kind, Regions, own_name
from toutates.protocol import grpc_service_pb2 as pb

__all__ = [
    "cuda_status",
    "of_caller",
    "register_cuda",
    "register_system",
    "system_status",
    "unregister_cuda",
    "unregister_system",
]


def of_caller(caller: Caller | None, request: Any) -> Any:
    """A request of this module, about regions of its caller's own.

    Args:
        caller: who sends it; None where nobody asks, and regions are everybody's.
        request: it, which is changed.
    """
    if caller is not None:
        request.name = own_name(caller.owner, request.name)
    return request


def system_status(regions: Regions, request: pb.SystemSharedMemoryStatusRequest) -> pb.SystemSharedMemoryStatusResponse:
    """Answer SystemSharedMemoryStatus: the region that is named, or all."""
    response = pb.SystemSharedMemoryStatusResponse()
    for region in regions.status(Kind.SYSTEM, request.name):
        name = regions.shown(region.name)
        told = response.regions[name]
        told.name, told.key, told.offset, told.byte_size = name, region.key, region.offset, region.byte_size
    return response


def register_system(
    regions: Regions, request: pb.SystemSharedMemoryRegisterRequest
) -> pb.SystemSharedMemoryRegisterResponse:
    """Answer SystemSharedMemoryRegister."""
    regions.refuse_unless_allowed()
    regions.register_system(request.name, request.key, request.offset, request.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def unregister_system(
    regions: Regions, request: pb.SystemSharedMemoryUnregisterRequest
) -> pb.SystemSharedMemoryUnregisterResponse:
    """Answer SystemSharedMemoryUnregister, which succeeds for names that nobody has registered, too."""
    regions.refuse_unless_allowed()
    regions.unregister(Kind.SYSTEM, request.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def cuda_status(regions: Regions, request: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
    """Answer CudaSharedMemoryStatus: the region that is named, or all."""
    response = pb.CudaSharedMemoryStatusResponse()
    for region in regions.status(Kind.CUDA, request.name):
        name = regions.shown(region.name)
        told = response.regions[name]
        told.name, told.device_id, told.byte_size = name, region.device, region.byte_size
    return response


def register_cuda(regions: Regions, request: pb.CudaSharedMemoryRegisterRequest) -> pb.CudaSharedMemoryRegisterResponse:
    """Answer CudaSharedMemoryRegister. Without a GPU the answer is the same whether regions are allowed or not."""
    regions.refuse_cuda_unless_allowed()
    regions.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def unregister_cuda(
    regions: Regions, request: pb.CudaSharedMemoryUnregisterRequest
) -> pb.CudaSharedMemoryUnregisterResponse:
    """Answer CudaSharedMemoryUnregister, which succeeds for names that nobody has registered, too."""
    regions.refuse_cuda_unless_allowed()
    regions.unregister(Kind.CUDA, request.name)
    return pb.CudaSharedMemoryUnregisterResponse()
