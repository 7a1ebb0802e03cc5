"""Reads a .wav file: chunks of a name, a length and content, of which `fmt ` says how the sound is
stored, and `data` is the sound. The file may come from anybody."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from ..files.limits import SOUND_BYTES
from ..files.outside import read_file

SAMPLE_BYTES = 2  # of 16-bit PCM
LOUDEST = 32768  # the 16-bit sample that becomes 1
PCM, EXTENSIBLE = 1, 0xFFFE  # formats; an extensible one says the other in its GUID
FORMAT = struct.Struct("<HHIIHH")  # format, channels, rate, bytes per second and frame, bits
HEAD = 12  # bytes before the first chunk
GUID_AT = 24  # bytes into an extensible format
PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")


def read_wav(path: str | Path, rate: int) -> NDArray[Any]:
    """The sound of a .wav file of 16-bit PCM: the mean of its channels, as float32 from -1 to 1.
    Raises DecodeError for another format or rate."""
    file = Path(path)
    again = f"ffmpeg -i {file.name} -ar {rate} -ac 1 -c:a pcm_s16le converted.wav"

    def refuse(what: str, mend: str = again) -> NoReturn:
        raise DecodeError(what, where=str(file), mend=mend)

    try:
        data = read_file(file, SOUND_BYTES.most)
    except OSError as error:
        refuse(f"the audio cannot be read: {error.strerror or error}", "the path of a .wav file")
    if data[:4] != b"RIFF":
        refuse("the audio cannot be read: file does not start with RIFF id")
    if len(data) < HEAD:
        refuse("the audio cannot be read: the file ends too early")
    if data[8:HEAD] != b"WAVE":
        refuse("the audio cannot be read: not a WAVE file")
    chunks = _chunks(data)
    about, content = chunks.get(b"fmt "), chunks.get(b"data")
    if about is None or content is None or len(about) < FORMAT.size:
        refuse("the audio cannot be read: fmt chunk and/or data chunk missing")
    form, channels, found, _, _, bits = FORMAT.unpack_from(about)
    if form == EXTENSIBLE and about[GUID_AT : GUID_AT + len(PCM_GUID)] == PCM_GUID:
        form = PCM
    if form != PCM:
        refuse(f"the audio cannot be read: unknown format: {form}")
    if bits != 8 * SAMPLE_BYTES:
        refuse(f"samples have {bits} bits, and {8 * SAMPLE_BYTES} are read")
    if found != rate:
        refuse(f"the audio has {found} samples per second, and the model needs {rate}")
    count = len(content) // (SAMPLE_BYTES * channels) if channels else 0
    if not count:
        refuse("the file has no audio", "")
    numbers = np.frombuffer(content, "<i2", count * channels).reshape(count, channels)
    made: NDArray[Any] = (numbers.mean(axis=1) / LOUDEST).astype(np.float32)
    return made


def _chunks(data: bytes) -> dict[bytes, memoryview]:
    """The first chunk of each name. One that is said to be longer than the file ends with it:
    programs that write into a pipe do not know the length before."""
    found: dict[bytes, memoryview] = {}
    at, view = HEAD, memoryview(data)
    while at + 8 <= len(data) and len(found) < 2:
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name in (b"fmt ", b"data"):
            found.setdefault(name, view[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return found
