"""What counts of whole models must not exceed, and the models of that list that have no paper's
table in tests/models/architectures.py: `models.py --check` holds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.models.architectures import WORDS, bert
from tests.models.onnx_layers import to_onnx

MILLION = 1e6
FLOAT32, FLOAT16, DOT, I8MM = "aarch64", "cortex-a76-float16", "cortex-a76", "i8mm"
ROW = "{:<24}{:<20}{:<26}{:>10}{:>10}{:>8}  {}"


@dataclass(frozen=True, slots=True)
class Limit:
    """Of a model on a target (models.py): millions of instructions; or their ratio, as models.py
    has it; or their share of those on another target; and megabytes of weights."""

    model: str
    target: str
    instructions: float = 0.0
    ratio: float = 0.0
    share: float = 0.0
    of: str = FLOAT32
    weights: float = 0.0


LIMITS = (
    Limit("mobilenet_v2", FLOAT32, 91),
    Limit("mobilenet_v3_small", FLOAT32, 18.5),
    Limit("efficientnet_b0", FLOAT32, 160),
    Limit("resnet50", FLOAT32, 850, weights=150),
    Limit("vit_tiny", FLOAT32, 400),
    Limit("minilm", FLOAT32, 415),
    Limit("yolov8n_320", FLOAT32, 212),
    Limit("yolo11n_640", FLOAT32, 880),
    Limit("yolo11n_320", FLOAT16, 115),
    Limit("mobilenet_v1", FLOAT16, ratio=1.15),
    Limit("bert_tiny", FLOAT16, share=0.6),
    Limit("vit_tiny", FLOAT16, share=0.6),
    Limit("mobilenet_v2_int8", DOT, 36),
    Limit("mobilenet_v2_int8", I8MM, 28),
    Limit("resnet50_int8", DOT, 320),
    Limit("resnet50_int8", I8MM, 195),
)


def wanted(models: Sequence[str]) -> list[tuple[str, str]]:
    """The models and targets that limits, of these models or of all, are about."""
    pairs = [
        pair
        for limit in LIMITS
        if not models or limit.model in models
        for pair in ((limit.model, limit.target), *([(limit.model, limit.of)] * bool(limit.share)))
    ]
    return list(dict.fromkeys(pairs))


def table(figures: Mapping[str, Mapping[str, Any]], ratio: Callable[[str, str], float]) -> int:
    """Prints each limit of the models measured beside its figure; how many were missed."""
    print(ROW.format("model", "target", "figure", "is", "most", "is/most", ""))
    missed = 0
    for limit in LIMITS:
        found = figures.get(f"{limit.model} {limit.target}")
        if found is None:
            continue
        for name, is_, most in _rows(limit, found, figures, ratio):
            missed += is_ > most
            verdict = "missed" if is_ > most else "held"
            numbers = f"{is_:.2f}", f"{most:g}", f"{is_ / most:.3f}"
            print(ROW.format(limit.model, limit.target, name, *numbers, verdict))
    return missed


def _rows(
    limit: Limit, found: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]],
    ratio: Callable[[str, str], float],
) -> list[tuple[str, float, float]]:  # fmt: skip
    rows = []
    if limit.instructions:
        rows.append(("M instructions", found["instructions"] / MILLION, limit.instructions))
    if limit.ratio:
        rows.append(("instructions per vector", ratio(limit.model, limit.target), limit.ratio))
    if limit.share:
        whole = figures[f"{limit.model} {limit.of}"]["instructions"]
        rows.append((f"share of {limit.of}'s", found["instructions"] / whole, limit.share))
    if limit.weights:
        rows.append(("MB of weights", found["weights_bytes"] / MILLION, limit.weights))
    return rows


# ------------------------------------------------------------------------------------- the models

Array = NDArray[Any]
Model = tuple[onnx.ModelProto, dict[str, Array]]


def minilm() -> Model:
    """The shape of MiniLM-L6 (Wang et al. 2020), 128 words, the last quarter masked."""
    inputs = (("words", (1, WORDS), "int64"), ("mask", (1, WORDS), "int64"))
    rng = np.random.default_rng(1)
    mask = (np.arange(WORDS) < WORDS * 3 // 4).astype(np.int64)
    given = {"words": rng.integers(0, 30522, (1, WORDS)), "mask": mask[None]}
    return to_onnx(bert(384, 6, 12), "minilm", inputs, 0), given


def yolo(name: str, side: int) -> Model:
    """A detector with random weights, as Ultralytics exports it, and an image of random numbers."""
    try:
        import torch
        from ultralytics import YOLO
    except ImportError:
        sys.exit(f"{name}_{side} needs torch and ultralytics: pip install ultralytics")
    torch.manual_seed(0)
    with TemporaryDirectory() as folder, chdir(folder):
        saved = YOLO(f"{name}.yaml").export(format="onnx", imgsz=side, simplify=False, opset=17)
        model = onnx.load(Path(saved))
    image = np.random.default_rng(0).random((1, 3, side, side)).astype(np.float32)
    return model, {model.graph.input[0].name: image}


MORE: Mapping[str, Callable[[], Model]] = {
    "minilm": minilm,
    "yolo11n_320": partial(yolo, "yolo11n", 320),
    "yolo11n_640": partial(yolo, "yolo11n", 640),
    "yolov8n_320": partial(yolo, "yolov8n", 320),
}
