"""A server that cannot copy to or from the memory of a GPU: what it serves from there, it runs where it is.

``python -m tests.e2e.bound_tensors made_up PATH MODEL FLAGS...`` is a server like that of ``tests.e2e.held``, with two
GPUs of ``tests.fake_cuda``; sessions say that they run on the first of them, and are told that its memory is the
host's, which it is. With ``real`` it is a server on the GPUs of the machine.
"""

from __future__ import annotations

import sys

from tests.e2e import held
from tests.fake_cuda import FakeCuda
from toutates.backends.onnx import device_runs
from toutates.backends.onnx.session import ModelSession
from toutates.system.cuda import Cuda, CudaError

__all__: list[str] = []


def _refuse(self: Cuda, device: int, to: int, source: int, size: int) -> None:
    raise CudaError("nothing is copied here")


class _OnDevice:
    """What a session says of where it runs: on no CPU, so that no worker runs its batches itself."""

    def __get__(self, session: object, owner: object = None) -> bool:
        return False

    def __set__(self, session: object, value: bool) -> None:
        pass


def _main() -> None:
    kind = sys.argv.pop(1)
    Cuda.copy = _refuse  # type: ignore[method-assign]
    if kind == "made_up":
        device_runs.GPU_MEMORY = "cpu"  # type: ignore[misc]
        ModelSession.device = 0  # type: ignore[assignment]
        ModelSession.on_cpu = _OnDevice()
        FakeCuda().install()
    held.main()


if __name__ == "__main__":
    _main()
