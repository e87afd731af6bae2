"""The smallest client over HTTP: the model `simple` adds and subtracts, by binary data and by JSON.

python examples/clients/http_sync.py [--url localhost:8000]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.http as triton


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8000")
    url = parser.parse_args().url

    input0 = np.arange(16, dtype=np.int32).reshape(1, 16)
    input1 = np.ones((1, 16), dtype=np.int32)
    right = True
    with triton.InferenceServerClient(url) as client:
        # Binary data are a tenth of the work for both sides. JSON is for eyes, and for what has no other form.
        for binary in (True, False):
            inputs = []
            for name, array in (("INPUT0", input0), ("INPUT1", input1)):
                tensor = triton.InferInput(name, list(array.shape), "INT32")
                tensor.set_data_from_numpy(array, binary_data=binary)
                inputs.append(tensor)
            outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
            result = client.infer("simple", inputs, outputs=outputs)
            total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
            print(f"{'binary' if binary else 'JSON':6}  sum {total[0]}  difference {difference[0]}")
            right = right and np.array_equal(total, input0 + input1) and np.array_equal(difference, input0 - input1)
    if not right:
        print("The server computed something else.", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
