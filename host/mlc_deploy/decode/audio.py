"""Makes the input of a speech model from a sound.

Some models take the samples. Others take the logarithms of their mel spectrum, as in Whisper's
paper (Radford et al. 2022, section 2.2: 80 channels, windows of 25 ms every 10 ms, of sound with
16,000 samples per second)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FLOOR = 1e-10  # lower bound of powers before the logarithm
RANGE = 8.0  # decades below the loudest; lower ones are cut
# Slaney's mel scale (Auditory Toolbox, 1998): linear up to 1 kHz, logarithmic from there on.
LINEAR, BREAK, STEPS = 200 / 3, 1000.0, 27 / np.log(6.4)
HIGHEST = 8000.0  # Hz, the end of the last channel


@dataclass(frozen=True, slots=True)
class Ear(ABC):
    """The audio of one chunk that a model reads, of `rate` samples per second."""

    rate: int = 16000

    input: ClassVar[str]  # the model's input, by its name in transformers

    @property
    @abstractmethod
    def samples(self) -> int:
        """The most samples of a chunk."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The input's shape for `samples` samples."""

    @property
    def least(self) -> int:
        """The fewest samples that can be heard; silence fills up a shorter part."""
        return self.samples

    @abstractmethod
    def features(self, part: Array) -> Array:
        """The model's input, float32, for float[n] with least <= n <= samples."""

    def parts(self, sound: Array) -> Iterator[Array]:
        """The audio, float[n], cut into chunks."""
        for begin in range(0, max(len(sound), 1), self.samples):
            part = sound[begin : begin + self.samples]
            yield np.pad(part, (0, max(0, self.least - len(part))))


@dataclass(frozen=True, slots=True)
class Spectra(Ear):
    """`frames` spectra of `channels`, one every `hop` samples, each of `window` samples."""

    channels: int = 80
    frames: int = 3000
    hop: int = 160
    window: int = 400

    input = "input_features"

    @property
    def samples(self) -> int:
        return self.frames * self.hop

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.channels, self.frames)

    def features(self, part: Array) -> Array:
        """The logarithms of the mel spectrum, float32[1, channels, frames]."""
        half = self.window // 2
        padded = np.pad(part.astype(np.float64), half, mode="reflect")
        cut = np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop]
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        power = np.abs(np.fft.rfft(cut[: self.frames] * hann)) ** 2
        mel = np.log10(np.maximum(power @ mel_filters(self).T, FLOOR))
        mel = np.maximum(mel, mel.max() - RANGE)
        return np.ascontiguousarray((mel.T[None] + 4) / 4, np.float32)


@dataclass(frozen=True, slots=True)
class Waves(Ear):
    """The samples themselves, from `least` to `samples`: the input is as long as the sound."""

    least: int = 1
    samples: int = 480000

    input = "input_values"

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.samples)

    def features(self, part: Array) -> Array:
        """The samples, float32[1, n]."""
        return np.ascontiguousarray(part[None], np.float32)


@cache
def mel_filters(ear: Spectra) -> Array:
    """The share of each frequency in each channel, [channels, window / 2 + 1]: triangles of equal
    area, equally far apart on the mel scale."""
    ends = np.linspace(0, _mel(HIGHEST), ear.channels + 2)
    edges = np.where(ends < _mel(BREAK), ends * LINEAR,
                     BREAK * np.exp((ends - _mel(BREAK)) / STEPS))  # fmt: skip
    bins = np.fft.rfftfreq(ear.window, 1 / ear.rate)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (mid - low), (high - bins) / (high - mid)
    made: Array = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return made


def _mel(hertz: float) -> float:
    if hertz < BREAK:
        return hertz / LINEAR
    return float(BREAK / LINEAR + np.log(hertz / BREAK) * STEPS)
