"""No package at all: JSON and binary tensors over HTTP with Python's standard library, on one connection.

python examples/clients/http_stdlib.py [--url localhost:8000]
"""

from __future__ import annotations

import argparse
import http.client
import json
import struct
import sys
from typing import Any

LENGTH = "Inference-Header-Content-Length"
LEFT, RIGHT = list(range(16)), [1] * 16


def ask(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    """The JSON of an answer, and the binary data behind it."""
    connection.request("POST", "/v2/models/simple/infer", body, headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(json.loads(answer)["error"])
    end = int(response.headers.get(LENGTH, len(answer)))
    return json.loads(answer[:end]), answer[end:]


def infer_json(connection: http.client.HTTPConnection) -> list[int]:
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": values}
        for name, values in (("INPUT0", LEFT), ("INPUT1", RIGHT))
    ]
    document, _ = ask(connection, json.dumps({"inputs": inputs}).encode(), {"Content-Type": "application/json"})
    total: list[int] = next(output["data"] for output in document["outputs"] if output["name"] == "OUTPUT0")
    return total


def infer_binary(connection: http.client.HTTPConnection) -> list[int]:
    """The tensors stand behind the JSON, little-endian and without gaps, in the order in which it names them."""
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    document = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    body = document + struct.pack("<32i", *LEFT, *RIGHT)
    _, data = ask(connection, body, {LENGTH: str(len(document))})
    return list(struct.unpack("<16i", data))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8000")
    connection = http.client.HTTPConnection(parser.parse_args().url, timeout=30)
    try:
        totals = {"JSON": infer_json(connection), "binary": infer_binary(connection)}
    finally:
        connection.close()
    for name, total in totals.items():
        print(f"{name:6}  {total}")
    right = [left + right for left, right in zip(LEFT, RIGHT, strict=True)]
    return 0 if all(total == right for total in totals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
