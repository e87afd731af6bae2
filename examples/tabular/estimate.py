"""Ask the model of this example for the rents of flats.

    python examples/tabular/estimate.py [--url HOST:PORT] AREA,ROOMS,YEAR,KILOMETRES,BALCONY ...

A feature that nobody knows is left empty: 75,3,,2.5,1. It needs tritonclient[http].
"""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.http as triton


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate the rents of flats.")
    parser.add_argument("--url", default="localhost:8000", help="HOST:PORT of REST")
    parser.add_argument("flats", nargs="+", metavar="AREA,ROOMS,YEAR,KILOMETRES,BALCONY")
    parsed = parser.parse_args()
    rows = np.array([[float(text or "nan") for text in flat.split(",")] for flat in parsed.flats], np.float32)
    tensor = triton.InferInput("FLAT", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    with triton.InferenceServerClient(parsed.url) as client:
        rents = client.infer("rent", [tensor]).as_numpy("RENT")
    for flat, rent in zip(parsed.flats, rents[:, 0], strict=True):
        print(f"{flat}: {rent:.0f} euros a month")


if __name__ == "__main__":
    main()
