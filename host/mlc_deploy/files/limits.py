"""What files from outside may cost this machine: one row per kind of file, one limit per cost.

A file of at most 1 MB takes no command more than 60 s or 1 GB, unless its model is honestly that
large. docs/explanation/threat_model.md has these rows as a table, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so many of a unit. of: what is counted. why: the reason for this number."""

    most: int
    unit: str
    of: str
    why: str

    def __str__(self) -> str:
        return f"{self.of}: {amount(self.most, self.unit)}"


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of files, who reads them, and what else bounds them: sizes that are compared with the
    file's, for example."""

    files: str
    module: str
    limits: tuple[Limit, ...]
    beside: str = ""


def amount(count: int, unit: str) -> str:
    """The text of a count; of bytes, in the largest unit that gives 1 or more."""
    if unit != "bytes":
        return f"{count:,} {unit}"
    sizes = ((GB, "GB"), (MB, "MB"), (KB, "KB"))
    size, name = next((each for each in sizes if count >= each[0]), (1, "B"))
    return f"{count / size:,.3g} {name}"


# ----------------------------------------------------------------------------------- limits

ONNX_BYTES = Limit(2 * GB - 1, "bytes", "file", "protobuf's bound; weights beyond are other files")
TFLITE_BYTES = Limit(4 * GB, "bytes", "file", "offsets in a flatbuffer have 32 bits")
RANK = Limit(32, "dimensions", "a tensor's rank", "numpy takes 64; LiteRT's operators take 8")
MADE_ELEMENTS = Limit(
    1 << 25, "elements", "a constant that a node makes, such as a range",
    "256 MB of int64; positions of models have a million",
)  # fmt: skip
DENSE_ELEMENTS = Limit(
    1 << 26, "elements", "a sparse tensor made dense",
    "256 MB of float32; the sparse matrices that converters write have a hundredth",
)  # fmt: skip
PT2_ENTRIES = Limit(1 << 17, "entries", "the archive", "a weight is one; large models have 10,000")
PT2_EXPANDED = Limit(
    1 << 26, "elements", "a weight with strides of 0",
    "256 MB of float32, which torch may copy; masks of 8,192 positions have as many",
)  # fmt: skip
PT2_DEPTH = Limit(200, "levels", "its JSON", "torch's graphs have 20; Python's stack has 1,000")
MANIFEST_BYTES = Limit(1 * MB, "bytes", "manifest", "the board's bound, too")
MANIFEST_DEPTH = Limit(8, "levels", "manifest", "the board's bound, too")
UNPACKED_BYTES = Limit(
    256 * MB, "bytes", "compressed arrays of an .npz, together",
    "zlib packs zeros a thousandfold; 16 times a larger file's size",
)  # fmt: skip
UNPACKED_RATIO = 16  # times a file's size: more than float arrays of real data are compressed
IMAGE_BYTES = Limit(256 * MB, "bytes", "file", "an uncompressed image of the most pixels")
IMAGE_PIXELS = Limit(
    1 << 26, "pixels", "an image, before it is decoded",
    "256 MB as RGBA; an image of 8K video has half as many",
)  # fmt: skip
RESIZED_PIXELS = Limit(
    1 << 24, "pixels", "an image after resize, and after crop",
    "400 MB as floats and their copy; models see 1,280 x 1,280",
)  # fmt: skip
SOUND_BYTES = Limit(256 * MB, "bytes", "file", "two hours of 16,000 samples per second")
SOUND_WINDOW = Limit(4096, "samples", "window and hop of a spectrum", "Whisper's have 400 and 160")
SOUND_CHANNELS = Limit(512, "channels", "a spectrum", "Whisper's have 128")
SOUND_FRAMES = Limit(4096, "positions", "an encoder", "Whisper's has 1,500 for 30 s")
SOUND_RATE = Limit(1 << 18, "samples per second", "a model's rate", "studios record 192,000")
TOKENS = Limit(1 << 31, "tokens", "lengths and windows of a text", "numbers of int32 are tokens")
CONFIG_BYTES = Limit(16 * MB, "bytes", "file", "a vocabulary in tokenizer_config.json takes 5 MB")
TEMPLATE_BYTES = Limit(1 * MB, "bytes", "template", "those of models have 20 KB")
TEMPLATE_SECONDS = Limit(2, "s of CPU time", "to write a chat", "templates of models take 5 ms")
TEMPLATE_MEMORY = Limit(512 * MB, "bytes", "its process", "templates of models take 40 MB")
TEXT = Limit(1 << 24, "characters", "a text that it writes", "some million tokens")
TEXT_TOKENS = Limit(1 << 22, "tokens", "of a text", "models read up to a million at once")
TOKENIZER_BYTES = Limit(256 * MB, "bytes", "file", "vocabularies of 262,144 tokens take 33 MB")
TOKENIZER_SECONDS = Limit(
    20, "s of CPU time", "to read it, and to convert a text", "33 MB take 2 s to read"
)
TOKENIZER_MEMORY = Limit(
    512 * MB, "bytes", "its process, beside 32 times the file", "33 MB take 600 MB"
)
TOKENIZER_RATIO = 32  # bytes of memory for a byte of the file
RECORD_BYTES = Limit(64 * MB, "bytes", "file", "a record with all kernels' details takes 4 MB")
CALIBRATED_BYTES = Limit(16 * MB, "bytes", "file", "thousands of calibrations take less")
BOARDS_BYTES = Limit(1 * MB, "bytes", "file", "a board takes some hundred bytes")
BOARDS_PARTS = Limit(100, "points", "a line", "the parser's time grows with a key's parts squared")
DATABASE_BYTES = Limit(1 * GB, "bytes", "file", "a million trials take 500 MB")
LINE_BYTES = Limit(16 * MB, "bytes", "a line", "a trace takes 4 KB")

READERS = (
    Reader(
        ".onnx", "frontend/onnx_file.py", (ONNX_BYTES, RANK, MADE_ELEMENTS),
        "sizes of weights are compared with the file; protobuf takes 100 levels of messages",
    ),
    Reader(
        "external data of an .onnx", "frontend/onnx_external.py", (),
        "a file in the model's folder, or beside the file that the model's own link leads to; "
        "offset and length are compared with its size; it is mapped",
    ),
    Reader(
        ".tflite", "frontend/tflite/file.py", (TFLITE_BYTES, RANK, DENSE_ELEMENTS),
        "lists are counted against the file's size",
    ),
    Reader(
        ".pt2", "frontend/pt2.py", (PT2_ENTRIES, PT2_EXPANDED, PT2_DEPTH),
        "entries are not compressed, so no larger than the file",
    ),
    Reader(
        ".mlc", "artifact/format.py", (MANIFEST_BYTES, MANIFEST_DEPTH),
        "blobs are mapped, and have their hash",
    ),
    Reader(
        ".npy, .npz", "files/npy.py", (UNPACKED_BYTES,),
        "headers are compared with the file; no Python objects",
    ),
    Reader(
        "images: PNG, JPEG, BMP, WebP, TIFF", "quantize/images.py",
        (IMAGE_BYTES, IMAGE_PIXELS, RESIZED_PIXELS), "no other format of Pillow's",
    ),
    Reader(".wav", "decode/wav.py", (SOUND_BYTES,), "chunks are no longer than the file"),
    Reader(
        "config.json and others beside a decoder", "decode/files.py", (CONFIG_BYTES, TOKENS),
    ),
    Reader(
        "preprocessor_config.json", "decode/speech_files.py",
        (CONFIG_BYTES, SOUND_WINDOW, SOUND_CHANNELS, SOUND_FRAMES, SOUND_RATE),
    ),
    Reader(
        "chat templates", "decode/tokens.py",
        (TEMPLATE_BYTES, TEMPLATE_SECONDS, TEMPLATE_MEMORY, TEXT),
        "in jinja2's sandbox, in a process of their own",
    ),
    Reader(
        "tokenizer.json", "decode/tokens.py",
        (TOKENIZER_BYTES, TOKENIZER_SECONDS, TOKENIZER_MEMORY, TEXT_TOKENS, TEXT),
        "in a process of its own",
    ),
    Reader("records of --json", "report/record.py", (RECORD_BYTES,)),
    Reader("tuning databases", "tuned/database.py", (DATABASE_BYTES, LINE_BYTES)),
    Reader("boards.toml", "board/enrolled.py", (BOARDS_BYTES, BOARDS_PARTS), "the user's own"),
    Reader("measurements of boards", "board/calibrated.py", (CALIBRATED_BYTES,), "the user's own"),
)  # fmt: skip


def table() -> Iterator[str]:
    """The lines of the table in threat_model.md."""
    yield "| file | limits | and |"
    yield "|---|---|---|"
    for reader in READERS:
        limits = "; ".join(map(str, reader.limits)) or "-"
        yield f"| {reader.files} (`{reader.module}`) | {limits} | {reader.beside or '-'} |"
