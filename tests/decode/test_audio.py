"""Sound as models of speech take it."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.decode.audio import Spectra, Waves, mel_filters
from mlc_deploy.decode.wav import read_wav
from mlc_deploy.errors import DecodeError

EAR = Spectra(frames=100)
AGAIN = "  try: ffmpeg -i NAME.wav -ar 16000 -ac 1 -c:a pcm_s16le converted.wav"


def tone(hertz: float, seconds: float = 1.0) -> np.ndarray:
    made: np.ndarray = 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(16000 * seconds)) / 16000)
    return made


def test_a_tone_is_loudest_in_its_channel() -> None:
    centres = np.arange(EAR.window // 2 + 1)[mel_filters(EAR).argmax(axis=1)] * 16000 / EAR.window
    for hertz in (440.0, 1000.0, 2500.0, 6000.0):
        (heard,) = EAR.features(tone(hertz))
        assert heard.shape == (80, 100) and heard.dtype == np.float32
        assert (
            abs(centres[heard.argmax(axis=0)] - hertz) <= 16000 / EAR.window + 0.04 * hertz
        ).all()


def test_levels_of_the_spectrum() -> None:
    """Silence is the lowest, and nothing is more than 8 decades (2 of these units) below the
    loudest."""
    (heard,) = EAR.features(np.concatenate([tone(1000, 0.5), np.zeros(8000)]))
    np.testing.assert_allclose(heard.max() - heard.min(), 2.0, atol=1e-6)
    np.testing.assert_allclose(EAR.features(np.zeros(16000)), (-10 + 4) / 4)
    louder = EAR.features(tone(1000)).max() - EAR.features(tone(1000) / 10).max()
    np.testing.assert_allclose(louder, 2 / 4, atol=1e-6)  # power of 10^2


def test_filters_are_of_one_area() -> None:
    """Slaney's triangles: each channel's area is 1, where bins are narrow enough to tell."""
    filters = mel_filters(Spectra(channels=40, window=4000))
    np.testing.assert_allclose(filters.sum(axis=1) * 16000 / 4000, 1, atol=0.02)


def test_longer_sound_is_cut() -> None:
    parts = list(EAR.parts(np.ones(40000, np.float32)))
    assert [len(p) for p in parts] == [16000] * 3 and [int(p.sum()) for p in parts][-1] == 8000


def test_samples_are_heard_as_they_are() -> None:
    """Only a part that is too short is filled up."""
    ear = Waves(least=100, samples=16000)
    sound = np.arange(32050) / 40000
    parts = list(ear.parts(sound))
    assert [len(p) for p in parts] == [16000, 16000, 100]
    assert not parts[2][50:].any()
    heard = ear.features(parts[1])
    assert heard.shape == ear.shape and heard.dtype == np.float32
    np.testing.assert_array_equal(heard[0], sound[16000:32000].astype(np.float32))


def written(
    path: Path, content: bytes, channels: int = 1, width: int = 2, rate: int = 16000
) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(content)
    return path


def test_a_file_of_two_channels(tmp_path: Path) -> None:
    numbers = np.array([[16384, -16384], [32767, 32767], [-32768, 0]], "<i2")
    read = read_wav(written(tmp_path / "x.wav", numbers.tobytes(), 2), 16000)
    np.testing.assert_array_equal(read, np.array([0, 32767 / 32768, -0.5], np.float32))


def test_refused_sound(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(DecodeError) as caught:
            read_wav(path, 16000)
        return str(caught.value).replace(str(tmp_path), "").replace(f"{path.name}", "NAME.wav")

    assert refused(written(tmp_path / "a-1.wav", b"\0" * 8, rate=44100)) == (
        "the audio has 44100 samples per second, and the model needs 16000\n"
        f"  in:  /NAME.wav\n{AGAIN}"
    )
    assert refused(written(tmp_path / "b-1.wav", b"\0" * 8, width=1)) == (
        f"samples have 8 bits, and 16 are read\n  in:  /NAME.wav\n{AGAIN}"
    )
    assert refused(written(tmp_path / "c-1.wav", b"")) == (
        "the file has no audio\n  in:  /NAME.wav"
    )
    (tmp_path / "d-1.wav").write_bytes(b"ID3 of another format, long enough to be read")
    assert refused(tmp_path / "d-1.wav") == (
        f"the audio cannot be read: file does not start with RIFF id\n  in:  /NAME.wav\n{AGAIN}"
    )
    (tmp_path / "e-1.wav").write_bytes(b"RIFF")
    assert refused(tmp_path / "e-1.wav") == (
        f"the audio cannot be read: the file ends too early\n  in:  /NAME.wav\n{AGAIN}"
    )
    assert refused(tmp_path / "nowhere-1.wav") == (
        "the audio cannot be read: No such file or directory\n  in:  /NAME.wav\n"
        "  try: the path of a .wav file"
    )
