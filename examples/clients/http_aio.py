"""Many requests in flight at once over HTTP, with asyncio. The client opens a connection for each of them.

python examples/clients/http_aio.py [--url localhost:8000] [--requests 256]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import numpy as np
import tritonclient.http.aio as triton


async def is_right(client: Any, index: int) -> bool:
    """Send one request whose numbers depend on ``index``, and check the answer."""
    inputs = []
    for name, value in (("INPUT0", index), ("INPUT1", 1)):
        tensor = triton.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), value, dtype=np.int32))
        inputs.append(tensor)
    result = await client.infer("simple", inputs, request_id=str(index))
    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    return bool((total == index + 1).all() and (difference == index - 1).all())


async def run(url: str, requests: int) -> int:
    async with triton.InferenceServerClient(url) as client:
        right = sum(await asyncio.gather(*(is_right(client, index) for index in range(requests))))
    print(f"{right} of {requests} right")
    return 0 if right == requests else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--requests", type=int, default=256)
    arguments = parser.parse_args()
    return asyncio.run(run(arguments.url, arguments.requests))


if __name__ == "__main__":
    sys.exit(main())
