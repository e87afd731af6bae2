"""The smallest client: one blocking request to the model `simple`, which adds and subtracts two vectors.

python examples/clients/simple_sync.py [--url localhost:8001]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.grpc as triton


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8001")
    url = parser.parse_args().url

    input0 = np.arange(16, dtype=np.int32).reshape(1, 16)
    input1 = np.ones((1, 16), dtype=np.int32)
    inputs = []
    for name, array in (("INPUT0", input0), ("INPUT1", input1)):
        tensor = triton.InferInput(name, array.shape, "INT32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)

    with triton.InferenceServerClient(url) as client:
        result = client.infer("simple", inputs)

    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    print(f"sum        {total[0]}\ndifference {difference[0]}")
    if not (np.array_equal(total, input0 + input1) and np.array_equal(difference, input0 - input1)):
        print("The server computed something else.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
