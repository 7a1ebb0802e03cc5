"""Trained models in int8: within the budget with no node named, by no more instructions than the
float model executes, or refused with the layers' names."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import onnxruntime
import pytest

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.quantize.data import samples_of
from mlc_deploy.quantize.prepare import read
from mlc_targets import Target, qemu_cpu
from tests.quantize.trained import MODELS, Trained

TARGETS = {
    "a72": "aarch64 -mcpu=cortex-a72",
    "a76": "aarch64 -mcpu=cortex-a76",
    "a7": "armv7a -mcpu=cortex-a7",
}
SLOW = ("captcha", "page_deskew", "text_detection", "text_recognition")  # on one CPU alone
RUNS = 24

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)


def quantized(model: Trained, target: str | None) -> mlc.Quantized | None:
    """The model in int8; None where it is refused, by a message that names layers."""
    labels = model.labels() if model.labels else None
    try:
        return mlc.quantize(
            model.path, model.data(), target=target, labels=labels, max_drop=model.max_drop,
            samples=RUNS if labels is None else len(labels),
        )  # fmt: skip
    except mlc.QuantizeError as refused:
        assert "'" in str(refused)
        return None


def first(model: Trained) -> dict[str, Any]:
    """The inputs of the first run."""
    return dict(samples_of(read(model.path), model.data(), None, 1, {}, {}).runs[0])


@pytest.mark.quantize
@pytest.mark.parametrize("name", MODELS)
def test_within_the_budget(name: str) -> None:
    made = quantized(MODELS[name], None)
    assert made is not None
    assert made.before is not None and made.after is not None
    assert made.before - made.after <= MODELS[name].max_drop + 1e-9
    assert any(layer.bits == 8 for layer in made.layers)
    session = onnxruntime.InferenceSession(made.model.SerializeToString())
    assert all(np.all(np.isfinite(y)) for y in session.run(None, first(MODELS[name])))


@pytest.mark.quantize
@needs_qemu
@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_no_more_instructions_than_float(name: str, cpu: str) -> None:
    if name in SLOW and cpu != "a76":
        pytest.skip("takes minutes; a76 stands for it")
    model = MODELS[name]
    made = quantized(model, TARGETS[cpu])
    if made is None:
        return
    assert made.costs is not None
    before, after = made.costs
    assert after <= before
    target = Target(TARGETS[cpu])
    given = first(model)
    shapes = {n: a.shape for n, a in given.items()}
    compiled = mlc.compile(from_onnx(made.model, shapes), target)
    with mlc.connect(f"qemu://{qemu_cpu(target)}", machine=target.arch) as board:
        done = mlc.deploy(compiled, board, given)
    assert done.ok
    assert done.record()["instructions"] == after
