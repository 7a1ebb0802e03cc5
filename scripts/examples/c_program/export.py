"""Exports the digits for a C program, with images for it to classify.

python export.py TARGET FOLDER      the same as mlc-deploy digits_cnn.onnx --emit obj --output ...
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import mlc_deploy as mlc

MODELS = Path(mlc.__file__).parent / "models"


def export(target: str, folder: Path, *, embed_weights: bool = False) -> Path:
    """Writes digits.o, digits.h, digits.weights, the executor's source, and images.f32."""
    model = mlc.compile(MODELS / "digits_cnn.onnx", target)
    header = model.export(folder, "digits", embed_weights=embed_weights)
    with np.load(MODELS / "digits.npz") as images:
        images["image"].tofile(folder / "images.f32")
    return header


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
