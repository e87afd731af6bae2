"""Tell the type of every file in a folder, with Magika served by Toutates.

python examples/magika/classify.py FOLDER [--url localhost:8001] [--compare]

With --compare, Magika's own API labels the same files on this machine, and any difference ends with status 1.
"""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from features import Rules
from make_repository import model_folder

# Requests under way at once. It bounds memory here, and stays below the batches the server holds for the model.
_IN_FLIGHT = 64


def files_below(folder: Path) -> Iterator[Path]:
    """Regular files that can be read, in a stable order; Magika follows links to files, and so does this."""
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                with path.open("rb"):
                    yield path
        except OSError as error:
            print(f"{path}: {error.strerror}", file=sys.stderr)


def classify(url: str, paths: list[Path], rules: Rules) -> dict[Path, str]:
    """The label of every file, one request each.

    Raises:
        triton.InferenceServerException: the server cannot be reached, or refused a request.
    """
    labels: dict[Path, str] = {}
    answers: queue.SimpleQueue[tuple[Path, Any, Exception | None]] = queue.SimpleQueue()

    def answered(path: Path, result: Any, error: Exception | None) -> None:
        answers.put((path, result, error))

    def take_answer() -> None:
        path, result, error = answers.get(timeout=60)
        if error is not None:
            raise error
        labels[path] = rules.label(result.as_numpy("target_label")[0])

    in_flight = 0
    with triton.InferenceServerClient(url) as client:
        for path in paths:
            features = rules.read(path)
            if isinstance(features, str):
                labels[path] = features
                continue
            if in_flight == _IN_FLIGHT:
                take_answer()
                in_flight -= 1
            tensor = triton.InferInput("bytes", [1, len(features)], "INT32")
            tensor.set_data_from_numpy(features[np.newaxis])
            client.async_infer("magika", [tensor], partial(answered, path))
            in_flight += 1
        for _ in range(in_flight):
            take_answer()
    return labels


def main() -> int:
    parser = argparse.ArgumentParser(description="Tell the type of every file in a folder, with Magika on a server.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument(
        "--compare", action="store_true", help="exit with 1 if Magika's own API labels a file otherwise"
    )
    parser.add_argument("--quiet", action="store_true", help="print no labels")
    arguments = parser.parse_args()

    paths = list(files_below(arguments.folder))
    if not paths:
        print(f"{arguments.folder}: no readable files", file=sys.stderr)
        return 1
    try:
        labels = classify(arguments.url, paths, Rules.load(model_folder()))
    except triton.InferenceServerException as error:
        print(f"{arguments.url}: {error}", file=sys.stderr)
        return 1
    if not arguments.quiet:
        for path in paths:
            print(f"{path}: {labels[path]}")

    if arguments.compare:
        from magika import Magika  # Here, because it loads a session of its own.

        own = Magika()
        differing = 0
        for path in paths:
            expected = str(own.identify_path(path).output.label)
            if labels[path] != expected:
                print(f"{path}: the server says {labels[path]}, Magika says {expected}", file=sys.stderr)
                differing += 1
        print(f"{len(paths)} files, {len(paths) - differing} labels equal, {differing} different")
        return 1 if differing else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
