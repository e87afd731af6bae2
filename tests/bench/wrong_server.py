"""A server that answers every request, with numbers that are off by one. Started as if it were an interpreter."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np

from bench import baseline_grpc_aio
from bench.baseline_service import ModelServer


class WrongModelServer(ModelServer):
    def infer(self, request: Any) -> Any:
        response = super().infer(request)
        numbers = np.frombuffer(response.raw_output_contents[0], "<f4") + 1
        response.raw_output_contents[0] = numbers.tobytes()
        return response


if __name__ == "__main__":
    sys.argv[1:] = sys.argv[3:]  # without the `-m toutates` that an interpreter would be told
    for flag in ("--metrics-addr", "--http-addr"):  # which this one has not
        if flag in sys.argv:
            at = sys.argv.index(flag)
            del sys.argv[at : at + 2]
    asyncio.run(baseline_grpc_aio.main(WrongModelServer))
