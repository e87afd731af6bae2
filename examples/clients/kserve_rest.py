"""KServe's own client (pip install kserve), as one asks a predictor, with JSON and with binary tensors.

python examples/clients/kserve_rest.py [--url localhost:8000]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferOutput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

LEFT, RIGHT = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)


def request(*, binary: bool) -> Any:
    inputs = []
    for name, array in (("INPUT0", LEFT), ("INPUT1", RIGHT)):
        tensor = InferInput(name, list(array.shape), "INT32")
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    outputs = [RequestedOutput("OUTPUT0", parameters={"binary_data": binary})]
    return InferRequest(model_name="simple", infer_inputs=inputs, request_outputs=outputs)


async def run(url: str) -> int:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    try:
        base = f"http://{url}"
        ready = [
            await client.is_server_live(base),
            await client.is_server_ready(base),
            await client.is_model_ready(base, "simple"),
            not await client.is_model_ready(base, "none"),
        ]
        print(f"live, ready, the model ready, another one not: {ready}")
        right = all(ready)
        for binary in (False, True):
            response = await client.infer(base, request(binary=binary), model_name="simple")
            (output,) = response.outputs
            assert isinstance(output, InferOutput)
            total = output.as_numpy()
            print(f"{'binary' if binary else 'JSON':6}  {total.ravel()}")
            right = right and np.array_equal(total, LEFT + RIGHT)
    finally:
        await client.close()
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8000")
    return asyncio.run(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
