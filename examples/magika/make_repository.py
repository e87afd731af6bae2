"""Put the model of the installed `magika` package (Google's file type detector) into a model repository.

python examples/magika/make_repository.py DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import magika

# Rows are 2048 int32 numbers, 8 KiB: 8 batches of 32 make a SuperTensor of 2 MiB. input_shapes and output_shapes are
# filled in from Magika's own configuration; -1 is the batch.
_CONFIG = """\
backend: supertensor
batch_size: 32
capacity: 8
num_executors: 1
allocator: cpu
input_shapes:
  bytes: [-1, {features}]
output_shapes:
  target_label: [-1, {labels}]
"""


def model_folder() -> Path:
    """The folder of the installed package that holds its default model and that model's config.min.json.

    Raises:
        FileNotFoundError: the package keeps its model elsewhere than the releases 1.0.x do.
    """
    models = Path(magika.__file__).parent / "models"
    # The package names its default model in code; there is one in every release so far, and the newest sorts last.
    folders = sorted(path.parent for path in models.glob("*/model.onnx"))
    if not folders:
        raise FileNotFoundError(f"no model.onnx under {models}: this release of magika is laid out in another way")
    return folders[-1]


def write_repository(folder: Path) -> Path:
    """Write Magika as version 1 of the model `magika` below ``folder``; returns the version's folder."""
    source = model_folder()
    config = json.loads((source / "config.min.json").read_text(encoding="utf-8"))
    version = folder / "magika" / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "model.onnx", version / "model.onnx")
    text = _CONFIG.format(
        features=config["beg_size"] + config["mid_size"] + config["end_size"], labels=len(config["target_labels_space"])
    )
    (version / "config.yaml").write_text(text, encoding="utf-8")
    return version


def main() -> None:
    parser = argparse.ArgumentParser(description="Put Magika's model into a model repository.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    print(write_repository(parser.parse_args().folder))


if __name__ == "__main__":
    main()
