"""Damaged models: an error message or a valid graph, never anything else."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import optimize, verify
from tests.onnx_models import one_node

DIGITS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models" / "digits_cnn.onnx"


def small_models() -> list[bytes]:
    """Models of few bytes, so that a mutation more often hits what gives them their shape."""
    x = np.ones((1, 2, 6, 6), np.float32)
    w = np.ones((4, 2, 3, 3), np.float32)
    ints = np.array
    return [
        DIGITS.read_bytes(),
        one_node(
            "Conv", {"x": x, "w": w}, constants=["w"], pads=[1, 1, 1, 1], strides=[2, 2], group=1
        ).SerializeToString(),
        one_node("Reshape", {"x": x, "s": ints([2, -1])}, constants=["s"]).SerializeToString(),
        one_node(
            "Slice",
            {"x": x, "starts": ints([1]), "ends": ints([-1]), "axes": ints([3])},
            constants=["starts", "ends", "axes"],
        ).SerializeToString(),
        one_node(
            "AveragePool", {"x": x}, kernel_shape=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1
        ).SerializeToString(),
        one_node(
            "Expand", {"x": x, "s": ints([3, 1, 1, 1, 1])}, constants=["s"]
        ).SerializeToString(),
    ]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """data with one to four of its bytes changed, some cut out, or some doubled."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + rng.randint(1, 8)]
            case _:
                out[at:at] = out[at : at + rng.randint(1, 8)]
    return bytes(out)


def hold(seeds: range) -> int:
    """How many mutations still gave a graph."""
    models = small_models()
    graphs = 0
    for seed in seeds:
        rng = random.Random(seed)
        try:
            function = optimize(from_onnx(mutated(models[seed % len(models)], rng)))
        except ImporterError as error:
            assert error.what and error.where, seed
        else:
            verify(function)
            graphs += 1
    return graphs


def test_mutations() -> None:
    assert 0 < hold(range(1000)) < 1000


@pytest.mark.fuzz
def test_many_mutations() -> None:
    assert 0 < hold(range(1000, 20_000)) < 19_000
