"""Build the model repository of this example: a LightGBM model that says what rent a flat may be let for.

    python examples/tabular/make_repository.py DIR

The model is trained here, on flats that are made up: a second. It needs numpy and lightgbm.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightgbm
import numpy as np
import numpy.typing as npt

FEATURES = ("area", "rooms", "year", "kilometres", "balcony")

CONFIG = """name: "rent"
backend: "lightgbm"
max_batch_size: 64
input { name: "FLAT" data_type: TYPE_FP32 dims: 5 }
output { name: "RENT" data_type: TYPE_FP32 dims: 1 }
dynamic_batching { }
"""


def made_up(count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Flats, one per row with the columns of FEATURES, and their rents in euros a month. Some years are missing."""
    rng = np.random.default_rng(1)
    area = rng.uniform(18, 160, count)
    rooms = np.clip(np.round(area / 28 + rng.normal(0, 0.6, count)), 1, 7)
    year = np.round(rng.uniform(1880, 2025, count))
    kilometres = rng.gamma(2.0, 3.0, count)
    balcony = rng.integers(0, 2, count)
    rent = 150 + area * (12 + 0.03 * (year - 1950)) * np.exp(-kilometres / 25) + 60 * balcony + rng.normal(0, 40, count)
    year[rng.random(count) < 0.1] = np.nan
    return np.stack([area, rooms, year, kilometres, balcony], axis=1).astype(np.float32), rent.astype(np.float32)


def train() -> lightgbm.Booster:
    """A model of the rents."""
    flats, rents = made_up(4_000)
    parameters = {"objective": "regression", "num_leaves": 31, "learning_rate": 0.1, "verbosity": -1, "seed": 1}
    parameters["num_threads"] = 1  # with so few rows, more would wait for each other
    return lightgbm.train(parameters, lightgbm.Dataset(flats, label=rents, feature_name=list(FEATURES)), 120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the model repository of the tabular example.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    directory: Path = parser.parse_args().directory
    (directory / "rent" / "1").mkdir(parents=True, exist_ok=True)
    (directory / "rent" / "config.pbtxt").write_text(CONFIG)
    train().save_model(directory / "rent" / "1" / "model.txt")
    print(f"a model in {directory}: rent")


if __name__ == "__main__":
    main()
