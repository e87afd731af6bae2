"""Find speech in audio, chunk by chunk over one call, as a telephone or a microphone gives it.

    python examples/voice_activity/detect.py [FILE.wav] [--url localhost:8001] [--realtime] [--compare]

The server keeps the state of the network between chunks: they are a sequence. Without a file, made-up vowels are heard.
"""

from __future__ import annotations

import argparse
import queue
import sys
import time
import uuid
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.voice_activity.speech import RATE, Samples, read, speech

MODEL = "vad"
CHUNK, CONTEXT = 512, 64
#: Speech begins with a chunk above the first, and ends with so many below the second.
BEGINS, GOES_ON, PAUSE = 0.5, 0.35, 4


def chunks_of(samples: Samples) -> list[Samples]:
    """The samples in chunks, with silence behind the last one."""
    padded = np.pad(samples, (0, -len(samples) % CHUNK))
    return list(padded.reshape(-1, CHUNK))


def ask(client: Any, chunks: list[Samples], *, realtime: bool) -> Iterator[float]:
    """Send chunks over one call; how likely each has speech in it, as the answers come.

    Raises:
        triton.InferenceServerException: a chunk is refused.
    """
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    sequence = str(uuid.uuid4())
    answered = 0

    def next_answer() -> float:
        result, error = answers.get(timeout=60)
        if error is not None:
            raise error
        return float(result.as_numpy("SPEECH").item())

    begun = time.monotonic()
    for at, chunk in enumerate(chunks):
        if realtime:
            time.sleep(max(0.0, begun + at * CHUNK / RATE - time.monotonic()))
        tensor = triton.InferInput("AUDIO", [1, CHUNK], "FP32").set_data_from_numpy(chunk[None])
        is_last = at == len(chunks) - 1
        client.async_stream_infer(MODEL, [tensor], sequence_id=sequence, sequence_start=at == 0, sequence_end=is_last)
        while not answers.empty():
            yield next_answer()
            answered += 1
    for _ in range(len(chunks) - answered):
        yield next_answer()
    client.stop_stream()


def segments(likely: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Begin and end of each stretch of speech, seconds, as soon as it has ended."""
    begin, last, at = -1, 0, -1
    for at, value in enumerate(likely):
        if value >= (BEGINS if begin < 0 else GOES_ON):
            begin, last = at if begin < 0 else begin, at
        elif begin >= 0 and at - last >= PAUSE:
            yield begin * CHUNK / RATE, (last + 1) * CHUNK / RATE
            begin = -1
    if begin >= 0:
        yield begin * CHUNK / RATE, (at + 1) * CHUNK / RATE


def directly(chunks: list[Samples]) -> list[float]:
    """The same by ONNX Runtime, with the package's own graph."""
    import onnxruntime

    from examples.voice_activity.fetch import fetch

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(fetch(), options)
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
    found = []
    for chunk in chunks:
        given = {"input": np.concatenate([context, chunk])[None], "state": state, "sr": np.array(RATE)}
        speaking, state = session.run(None, given)
        context = chunk[-CONTEXT:]
        found.append(float(speaking.item()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Find speech in audio.")
    parser.add_argument("file", type=Path, nargs="?", help="WAV, 16 kHz, 16 bits, one channel")
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--realtime", action="store_true", help="send as fast as one speaks")
    parser.add_argument("--compare", action="store_true", help="with the network run here")
    given = parser.parse_args()
    likely: list[float] = []

    def heard(values: Iterator[float]) -> Iterator[float]:
        for value in values:
            likely.append(value)
            yield value

    try:
        chunks = chunks_of(read(given.file) if given.file is not None else speech("aeioaoe", "oiaeia"))
        with triton.InferenceServerClient(given.url) as client:
            for begin, end in segments(heard(ask(client, chunks, realtime=given.realtime))):
                print(f"speech from {begin:.2f} s to {end:.2f} s", flush=True)
    except (OSError, ValueError, wave.Error, triton.InferenceServerException) as error:
        print(error, file=sys.stderr)
        return 1
    if given.compare:
        difference = float(np.abs(np.subtract(likely, directly(chunks))).max())
        print(f"{len(chunks)} chunks; the largest difference from the network run here is {difference:.1e}")
        return int(difference > 1e-4)
    return 0


if __name__ == "__main__":
    sys.exit(main())
