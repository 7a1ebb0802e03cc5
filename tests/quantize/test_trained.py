"""Trained models in int8: within the budget with no node named, by no more instructions than the
float model executes, or refused with the layers' names."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.quantize.data import samples_of
from mlc_deploy.quantize.prepare import read
from mlc_targets import Target, qemu_cpu
from tests.quantize.trained import (
    MODELS,
    RUNS,
    SLOW,
    TARGETS,
    Array,
    Trained,
    detector,
    quantized,
    scenes,
)

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)


def made_or_refused(model: Trained, target: str | None) -> mlc.Quantized | None:
    """The model in int8; None where it is refused, by a message that names layers."""
    try:
        return quantized(model, target)
    except mlc.QuantizeError as refused:
        assert "'" in str(refused)
        return None


def first(model: Trained) -> dict[str, Any]:
    """The inputs of the first run."""
    return dict(samples_of(read(model.path), model.data(), None, 1, {}, {}).runs[0])


@pytest.mark.quantize
@pytest.mark.parametrize("name", MODELS)
def test_within_the_budget(name: str) -> None:
    made = made_or_refused(MODELS[name], None)
    assert made is not None
    assert made.before is not None and made.after is not None
    assert made.before - made.after <= MODELS[name].max_drop + 1e-9
    assert any(layer.bits == 8 for layer in made.layers)
    session = onnxruntime.InferenceSession(made.model.SerializeToString())
    assert all(np.all(np.isfinite(y)) for y in session.run(None, first(MODELS[name])))


def by_our_kernels(proto: ModelProto, runs: Array, name: str) -> dict[str, Array]:
    """Outputs of all runs, each of one element along the first axis, on this machine."""
    compiled = mlc.compile(from_onnx(proto, {name: runs[:1].shape}), "host")
    with mlc.connect("local://") as board:
        loaded = board.load(compiled)
        made = [loaded.run({name: run[None]}) for run in runs]
    return {n: np.concatenate([m[n] for m in made]) for n in made[0]}


def overlap(a: Array, b: Array) -> Array:
    """The intersection of boxes over their union; [..., 4]: least and largest corner."""
    sides = np.minimum(a, b)[..., 2:] - np.maximum(a, b)[..., :2]
    common = np.prod(np.clip(sides, 0, None), axis=-1)
    sizes = [np.prod(x[..., 2:] - x[..., :2], axis=-1) for x in (a, b)]
    return np.asarray(common / (sum(sizes) - common))


@pytest.mark.quantize
@pytest.mark.parametrize("name", ["face_refine", "face_output"])
def test_faces_keep_class_and_box(name: str) -> None:
    """Of faces, and of squares without one, that were no calibration data."""
    model = MODELS[name]
    made = quantized(model, None)
    ((given, squares),) = model.data().items()
    left = np.concatenate([squares[RUNS:], squares[RUNS:, ::-1]])
    session = onnxruntime.InferenceSession(model.path)
    names = [output.name for output in session.get_outputs()]
    right = dict(zip(names, session.run(None, {given: left}), strict=True))
    found = by_our_kernels(made.model, left, given)
    score = next(n for n in names if right[n].shape[1] == 2)
    box = next(n for n in names if right[n].shape[1] == 4)
    faces, still = right[score][:, 1] > 0.5, found[score][:, 1] > 0.5
    assert faces.sum() >= 150 and (~faces).sum() >= 150
    whole = np.array([0, 0, 1, 1])  # boxes are given as what is added to the square's corners
    stay = still & (overlap(whole + right[box], whole + found[box]) > 0.9)
    assert stay[faces].mean() >= 0.99 and still[~faces].mean() <= 0.01


def boxes(outputs: dict[str, Array], names: list[str]) -> list[Array]:
    """Of each picture, the corners of the faces that CenterFace sees."""
    heat, sizes, middles = (outputs[name] for name in names[:3])
    found = []
    for score, size, middle in zip(heat[:, 0], sizes, middles, strict=True):
        around = np.lib.stride_tricks.sliding_window_view(np.pad(score, 1), (3, 3))
        y, x = np.nonzero((score > 0.5) & (score == around.max((2, 3))))
        extent = 4 * np.exp(size[:, y, x])
        at = 4 * (np.stack([y, x]) + middle[:, y, x] + 0.5)
        found.append(np.concatenate([at - extent / 2, at + extent / 2]).T)
    return found


def kept(of: list[Array], among: list[Array]) -> Array:
    """Of each box, whether there is one in its place."""
    pairs = [(box, there) for each, there in zip(of, among, strict=True) for box in each]
    return np.array([bool(np.any(overlap(box[None], there) > 0.7)) for box, there in pairs])


@pytest.mark.quantize
def test_a_detector_keeps_its_boxes() -> None:
    """Of faces in pictures that were no calibration data."""
    proto = detector()
    ((given, pictures),) = scenes("input.1", 70, 128).items()
    known, left = pictures[:6], pictures[6:]
    made = mlc.quantize(proto, {given: known}, shapes={given: known[:1].shape})
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    right = boxes(dict(zip(names, session.run(None, {given: left}), strict=True)), names)
    found = boxes(by_our_kernels(made.model, left, given), names)
    faces = kept(right, found)
    assert faces.size >= 150 and faces.mean() >= 0.99
    assert (~kept(found, right)).sum() <= 0.01 * faces.size


@pytest.mark.quantize
@needs_qemu
@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_no_more_instructions_than_float(name: str, cpu: str) -> None:
    if name in SLOW and cpu != "a76":
        pytest.skip("takes minutes; a76 stands for it")
    model = MODELS[name]
    made = made_or_refused(model, TARGETS[cpu])
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
