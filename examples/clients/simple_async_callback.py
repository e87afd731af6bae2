"""Many requests in flight at once from one thread, answered through callbacks.

python examples/clients/simple_async_callback.py [--url localhost:8001] [--requests 256]

Requests that are in flight together are what the server batches. Callbacks run in a thread of grpc's own, hence the
queue: keep them short.
"""

from __future__ import annotations

import argparse
import functools
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--requests", type=int, default=256)
    arguments = parser.parse_args()

    answers: queue.SimpleQueue[tuple[int, Any, Exception | None]] = queue.SimpleQueue()

    def answered(index: int, result: Any, error: Exception | None) -> None:
        answers.put((index, result, error))

    wrong = 0
    with triton.InferenceServerClient(arguments.url) as client:
        for index in range(arguments.requests):
            inputs = []
            for name, value in (("INPUT0", index), ("INPUT1", 1)):
                tensor = triton.InferInput(name, [1, 16], "INT32")
                tensor.set_data_from_numpy(np.full((1, 16), value, dtype=np.int32))
                inputs.append(tensor)
            client.async_infer("simple", inputs, functools.partial(answered, index), request_id=str(index))

        # Answers come in any order; the index says whose each one is.
        for _ in range(arguments.requests):
            index, result, error = answers.get(timeout=30)
            if error is not None:
                print(f"request {index}: {error}", file=sys.stderr)
                wrong += 1
            elif not (
                (result.as_numpy("OUTPUT0") == index + 1).all() and (result.as_numpy("OUTPUT1") == index - 1).all()
            ):
                print(f"request {index}: the server computed something else", file=sys.stderr)
                wrong += 1

    print(f"{arguments.requests - wrong} of {arguments.requests} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
