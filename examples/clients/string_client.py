"""Strings, which Triton calls BYTES: words of any length and script, to a model that returns what it gets.

python examples/clients/string_client.py [--url localhost:8001]
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

    # Elements travel as bytes and come back as bytes; text is encoded by the caller.
    words = [[b"Toutates", "Ἐπόνα 🐎".encode(), b""], [b"x" * 10_000, b"line\nbreak", b" spaces "]]
    strings = np.array(words, dtype=np.object_)
    tensor = triton.InferInput("INPUT0", strings.shape, "BYTES")
    tensor.set_data_from_numpy(strings)

    with triton.InferenceServerClient(url) as client:
        echoed = client.infer("identity_string", [tensor]).as_numpy("OUTPUT0")

    for word in echoed.reshape(-1):
        print(word[:40].decode())
    if echoed.shape != strings.shape or echoed.tolist() != words:
        print("The server returned something else.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
