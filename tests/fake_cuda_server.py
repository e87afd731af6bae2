"""A server like that of ``tests.e2e.held``, with two GPUs: ``python -m tests.fake_cuda_server PATH MODEL FLAGS...``"""

from __future__ import annotations

from pathlib import Path

from tests.e2e import held
from tests.fake_cuda import FakeCuda
from toutates.system import cuda

__all__: list[str] = []


def _main() -> None:
    cuda.DRIVER_FILES = (Path("/dev/null"),)  # type: ignore[misc, assignment]
    FakeCuda().install()
    held.main()


if __name__ == "__main__":
    _main()
