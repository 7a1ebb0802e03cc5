"""Models that the tests save: the digits, and one that needs no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mlc_deploy as mlc

MODELS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models"
DIGITS = MODELS / "digits_cnn.onnx"
TARGETS = {"x86_64": "x86_64", "aarch64": "aarch64", "arm": "armv7a"}


@cache
def digits(machine: str = "x86_64") -> mlc.CompiledModel:
    """The digits for a machine, by this process once."""
    return mlc.compile(DIGITS, TARGETS[machine])


def images() -> NDArray[Any]:
    with np.load(MODELS / "digits.npz") as archive:
        found: NDArray[Any] = archive["image"]
    return found


def expected() -> Mapping[str, NDArray[Any]]:
    return digits().evaluate({"image": images()})
