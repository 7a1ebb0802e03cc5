"""Detectors with their suppression inside, as PyTorch's users export them, against onnxruntime.

Weights are random: the statistics of normalisation are those of random images, and the scores of
the heads are spread, so that many boxes overlap and none is decided by the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --only detectors")
pytest.importorskip("ultralytics", reason="needs ultralytics: scripts/test --only detectors")

import torchvision  # noqa: E402
from ultralytics import YOLO  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend.node import shape_of  # noqa: E402
from tests.onnx_models import reference  # noqa: E402
from tests.sessions import TARGETS, aarch64, armv7, board_named, local  # noqa: E402

__all__ = ["aarch64", "armv7", "local"]  # fixtures

pytestmark = [
    pytest.mark.detectors,
    pytest.mark.filterwarnings("ignore"),  # of the exporters
]

Array = NDArray[Any]
SIDE = 320
THRESHOLD = 0.25  # of Ultralytics' scores
SPREAD, MEAN = 1.0, -4.5  # of the logits of classes: many boxes are above the threshold


def normalise(module: Any, images: Any) -> None:
    """Gives normalisation the statistics of images."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    module.train()
    module(images)
    module.eval()


def spread(module: Any, heads: list[Any], mean: float, images: Any) -> None:
    """Gives each output of heads, a module's layers, that mean and a spread over places."""
    outputs: dict[Any, Any] = {}

    def seen(layer: Any, _: Any, output: Any) -> None:
        outputs[layer] = output

    hooks = [head.register_forward_hook(seen) for head in heads]
    module(images)
    for hook in hooks:
        hook.remove()
    for head in heads:
        plain = outputs[head].movedim(1, -1).flatten(0, -2) - head.bias
        scale = SPREAD / float((plain - plain.mean(0)).std())
        head.weight.mul_(scale)
        head.bias.copy_(mean - scale * plain.mean(0))


def yolo(name: str, folder: Path) -> Path:
    model = YOLO(f"{name}.yaml")
    with torch.no_grad():
        images = torch.rand(8, 3, SIDE, SIDE)
        normalise(model.model, images)
        spread(model.model, [scores[-1] for scores in model.model.model[-1].cv3], MEAN, images)
    saved = model.export(
        format="onnx", imgsz=SIDE, opset=17, simplify=False, nms=True, conf=THRESHOLD
    )
    return Path(saved).rename(folder / f"{name}.onnx")


def of_torchvision(name: str, folder: Path, heads: Sequence[str] = (), **how: Any) -> Path:
    function = getattr(torchvision.models.detection, name)
    module = function(weights=None, weights_backbone=None, **how).eval()
    path = folder / f"{name}.onnx"
    images = [torch.rand(3, SIDE, SIDE)]
    with torch.no_grad():
        normalise(module.backbone, torch.randn(8, 3, SIDE, SIDE))
        for head in heads:
            spread(module, [module.get_submodule(head)], 0.0, images)
        torch.onnx.export(
            module, (images,), path, opset_version=17, dynamo=False, input_names=["image"]
        )
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("detectors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # Ultralytics writes beside where it runs
        torch.manual_seed(0)
        yield {
            "yolov8n": yolo("yolov8n", folder),
            "yolo11n": yolo("yolo11n", folder),
            "ssdlite": of_torchvision("ssdlite320_mobilenet_v3_large", folder),
            "faster_rcnn": of_torchvision(
                "fasterrcnn_mobilenet_v3_large_320_fpn",
                folder,
                ["rpn.head.cls_logits", "roi_heads.box_predictor.cls_score"],
                box_score_thresh=0.005,
            ),
        }


def same_objects(found: Array, right: Array) -> int:
    """How many of the right boxes, scores and classes [n, 6] were found."""
    return sum(
        any(
            np.abs(box[:4] - own[:4]).max() < 0.5
            and abs(box[4] - own[4]) < 1e-3
            and box[5] == own[5]
            for own in found
        )
        for box in right
    )


def objects(outputs: dict[str, Array]) -> Array:
    """Boxes, scores and classes [n, 6] of a detector's outputs, of one tensor or of three."""
    parts = list(outputs.values())
    if len(parts) == 1:
        (whole,) = parts[0]
        return np.asarray(whole[whole[:, 4] > 0])
    (boxes,) = (p for p in parts if p.ndim == 2)
    (scores,) = (p for p in parts if p.ndim == 1 and p.dtype.kind == "f")
    (classes,) = (p for p in parts if p.dtype.kind == "i")
    return np.column_stack([boxes, scores, classes])


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
@pytest.mark.parametrize("name", ["yolov8n", "yolo11n", "ssdlite", "faster_rcnn"])
def test_the_same_objects(
    name: str, board: str, exported: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    path = exported[name]
    session = board_named(request, board)
    compiled = mlc.compile(path, TARGETS[board])
    module = session.load(compiled)
    (given,) = compiled.reference.params
    image = np.random.default_rng(1).random(shape_of(given), np.float32)
    right = objects(reference(path, {given.name: image}))
    found = objects(module.run({given.name: image}, timeout=900))
    module.close()
    assert len(right) >= 40
    assert len(found) == len(right)
    assert same_objects(found, right) >= 0.99 * len(right)
