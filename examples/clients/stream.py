"""Requests and answers over one call (ModelStreamInfer), answers in the order of the requests.

python examples/clients/stream.py [--url localhost:8001] [--model NAME] [--count 100]

The model takes one FP32 input and gives one output; the answers are compared with those of unary calls.
"""

from __future__ import annotations

import argparse
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--count", type=int, default=100, help="requests")
    arguments = parser.parse_args()

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(arguments.url) as client:
        metadata = client.get_model_metadata(arguments.model)
        [given], [output] = metadata.inputs, metadata.outputs
        shape = [size if size > 0 else 1 for size in given.shape]

        def tensor(number: int) -> Any:
            made = triton.InferInput(given.name, shape, given.datatype)
            return made.set_data_from_numpy(np.full(shape, number, np.float32))

        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(arguments.count):
            client.async_stream_infer(arguments.model, [tensor(number)], request_id=str(number))
        for number in range(arguments.count):
            result, error = answers.get(timeout=60)
            if error is not None:
                print(f"request {number}: {error}", file=sys.stderr)
                return 1
            response = result.get_response()
            expected = client.infer(arguments.model, [tensor(number)]).as_numpy(output.name)
            same = np.allclose(result.as_numpy(output.name), expected, rtol=1e-5, atol=1e-6)
            if response.id != str(number) or not same:
                print(f"request {number}: answer {response.id} is not its own", file=sys.stderr)
                return 1
        client.stop_stream()
    print(f"{arguments.count} answers of model '{arguments.model}' came in the order of their requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
