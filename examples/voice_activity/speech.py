"""Made-up speech: vowels with pauses between them, which a detector of speech takes for speech.

python examples/voice_activity/speech.py FILE.wav
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["read", "speech", "write"]

RATE = 16_000
#: Resonances of the mouth, Hz, and how wide each is.
VOWELS = {"a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010), "o": (570, 840, 2410)}
WIDTHS = (80, 100, 140)
VOWEL_S = 0.18

Samples = npt.NDArray[np.float32]


def speech(*phrases: str, pause_s: float = 0.8) -> Samples:
    """A pause, and each phrase of vowels with a pause behind it; float32 samples at 16 kHz, from -1 to 1."""
    rng = np.random.default_rng(0)
    pause = np.zeros(int(pause_s * RATE))
    parts = [pause]
    for at, phrase in enumerate(phrases):
        said = np.concatenate(
            [_vowel(vowel, 120.0 + 30.0 * at + 5.0 * (number % 3), rng) for number, vowel in enumerate(phrase)]
        )
        parts += [0.3 * said / np.abs(said).max(), pause]
    whole = np.concatenate(parts)
    return (whole + 0.001 * rng.standard_normal(len(whole))).astype(np.float32)


def _vowel(vowel: str, pitch: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The sound of vocal cords that open so many times in a second, in a mouth that resonates."""
    times = np.arange(int(VOWEL_S * RATE)) / RATE
    phase = times * pitch % 1.0
    cords = np.where(phase < 0.6, np.sin(np.pi * phase / 0.6), 0.0) + 0.02 * rng.standard_normal(len(times))
    sound = np.diff(cords, prepend=0.0)
    rings = times[:400]
    for resonance, width in zip(VOWELS[vowel], WIDTHS, strict=True):
        sound = np.convolve(sound, np.exp(-np.pi * width * rings) * np.sin(2 * np.pi * resonance * rings))[: len(times)]
        sound /= np.abs(sound).max()
    return sound * np.sqrt(np.sin(np.pi * np.arange(len(times)) / len(times)))


def write(path: Path, samples: Samples) -> None:
    """Write a WAV file of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def read(path: Path) -> Samples:
    """The samples of a WAV file.

    Raises:
        ValueError: it is not of 16 bits, one channel and 16 kHz.
    """
    with wave.open(str(path), "rb") as file:
        form = file.getnchannels(), file.getsampwidth(), file.getframerate()
        if form != (1, 2, RATE):
            raise ValueError(
                f"{path}: {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz; expected 1 of 16 at {RATE}"
            )
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)


if __name__ == "__main__":
    write(Path(sys.argv[1]), speech("aeioaoe", "oiaeia"))
