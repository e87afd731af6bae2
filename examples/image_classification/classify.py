"""Ask the ensemble of this example what pictures show.

    python examples/image_classification/classify.py [--url HOST:PORT] FILE ...

It needs tritonclient[http].
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tritonclient.http as triton


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask what pictures show.")
    parser.add_argument("--url", default="localhost:8000", help="HOST:PORT of REST")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parsed = parser.parse_args()
    image = triton.InferInput("IMAGE", [len(parsed.files), 1], "BYTES")
    image.set_data_from_numpy(np.array([[file.read_bytes()] for file in parsed.files], np.object_))
    with triton.InferenceServerClient(parsed.url) as client:
        result = client.infer("classify", [image])
    labels, scores = result.as_numpy("LABEL"), result.as_numpy("SCORE")
    for file, label, score in zip(parsed.files, labels[:, 0], scores[:, 0], strict=True):
        print(f"{file.name}: {label.decode()} ({score:.2f})")


if __name__ == "__main__":
    main()
