"""Ask the ensemble of this example what texts are about.

    python examples/text_classification/classify.py [--url HOST:PORT] TEXT ...

It needs tritonclient[http].
"""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.http as triton


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask what texts are about.")
    parser.add_argument("--url", default="localhost:8000", help="HOST:PORT of REST")
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parsed = parser.parse_args()
    text = triton.InferInput("TEXT", [len(parsed.texts), 1], "BYTES")
    text.set_data_from_numpy(np.array([[one.encode()] for one in parsed.texts], np.object_))
    with triton.InferenceServerClient(parsed.url) as client:
        result = client.infer("classify", [text])
    labels, scores = result.as_numpy("LABEL"), result.as_numpy("SCORE")
    for one, label, score in zip(parsed.texts, labels[:, 0], scores[:, 0], strict=True):
        print(f"{one}: {label.decode()} ({score:.2f})")


if __name__ == "__main__":
    main()
