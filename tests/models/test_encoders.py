"""Encoders of transformers, as PyTorch's users export them: texts of any length, images of any
batch, sound. Each has two layers of its usual width, and random weights. Against torch itself.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --only encoders")
transformers = pytest.importorskip(
    "transformers", reason="needs transformers: scripts/test --only encoders"
)
pytest.importorskip("onnxscript", reason="needs onnxscript: scripts/test --only encoders")

from torch import nn  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.driver.compare import compare  # noqa: E402
from mlc_rpc import Session  # noqa: E402
from tests.sessions import local  # noqa: E402

__all__ = ["local"]  # fixtures

pytestmark = [pytest.mark.encoders, pytest.mark.filterwarnings("ignore")]  # of the exporters

BATCH, LENGTH, WORDS = 2, 40, 5000
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers")
KINDS = ("IMAGE_CLASSIFICATION", "SEQUENCE_CLASSIFICATION", "CTC")

TEXTS = (
    "bert", "convbert", "deberta-v2", "distilbert", "electra", "mpnet", "nystromformer",
    "roformer", "squeezebert", "xlm-roberta",
)  # fmt: skip
IMAGES = (
    "dinov2", "focalnet", "levit", "mobilenet_v2", "mobilevit", "poolformer",
    "pvt_v2", "resnet", "segformer", "swin", "swiftformer", "textnet", "vit",
)  # fmt: skip
PROGRAMS = ("bit", "canine", "data2vec-audio", "fnet", "hubert", "wav2vec2", "wavlm", "xlm")


def small(name: str) -> Any:
    """A model of two layers in inference mode, all of whose weights have an effect."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name)
    for key in DEPTHS:
        if (getattr(config, key, None) or 0) > 2:
            setattr(config, key, 2)
    if (getattr(config, "vocab_size", None) or 0) > WORDS:
        config.vocab_size = WORDS
    config._attn_implementation = "eager"
    auto = transformers.models.auto.modeling_auto
    tables = [getattr(auto, f"MODEL_FOR_{kind}_MAPPING") for kind in KINDS]
    made = next(t[type(config)] for t in (*tables, auto.MODEL_MAPPING) if type(config) in t)
    model = (made[0] if isinstance(made, tuple) else made)._from_config(config).eval()
    for key, parameter in model.named_parameters():
        if not parameter.any():  # as it is before training
            scale = parameter.ndim == 1 and not key.endswith("bias")
            nn.init.normal_(parameter, float(scale), 0.05)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return model


def given(model: Any, length: int, batch: int = 1) -> dict[str, Any]:
    match model.main_input_name:
        case "input_ids":
            ids = torch.randint(5, 900, (batch, length))
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        case "pixel_values":
            side, channels = (
                getattr(model.config, k, None) for k in ("image_size", "num_channels")
            )
            side = side or 224
            side = side if isinstance(side, int) else side[0]
            return {"pixel_values": torch.randn(batch, channels or 3, side, side)}
    return {"input_values": torch.randn(batch, 400 * length)}


class Outputs(nn.Module):
    """The first output of a model of these inputs."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Any) -> Any:
        return self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=False)[0]


def exported(model: Any, tensors: Mapping[str, Any], axes: int) -> bytes:
    """The model as ONNX, with so many first dimensions of each input open."""
    file = io.BytesIO()
    automatic = dict.fromkeys(range(axes), torch.export.Dim.AUTO)
    with torch.no_grad():
        torch.onnx.export(
            Outputs(model, [*tensors]), tuple(tensors.values()), file, dynamo=True, verbose=False,
            input_names=[*tensors], dynamic_shapes=((automatic,) * len(tensors),),
        )  # fmt: skip
    return file.getvalue()


def agree(found: Any, model: Any, tensors: Mapping[str, Any]) -> None:
    with torch.no_grad():
        expected = Outputs(model, [*tensors])(*tensors.values()).numpy()
    check = compare(found, expected)
    assert np.ptp(expected) > 1e-3 and check.ok and check.max_rel_err < 2e-4, check


def names(proto: onnx.ModelProto) -> list[list[str]]:
    """The names of the open dimensions of each input."""
    shapes = [i.type.tensor_type.shape.dim for i in proto.graph.input]
    return [[d.dim_param for d in shape if d.dim_param] for shape in shapes]


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_any_length(name: str, local: Session) -> None:
    model = small(name)
    data = exported(model, given(model, 24), 2)
    (batch, length), *others = names(onnx.load_from_string(data))
    dims: dict[str, int | str] = {batch: f"<={BATCH}", length: f"<={LENGTH}"}
    for own in others:
        dims |= {n: same for n, same in zip(own, (batch, length), strict=True) if n != same}
    loaded = local.load(mlc.compile(onnx.load_from_string(data), "host", dims=dims))
    for size in (24, 7, LENGTH):
        tensors = given(model, size)
        arrays = {k: v.numpy() for k, v in tensors.items() if k in loaded.model.arguments}
        (found,) = loaded.run(arrays).values()
        agree(found, model, tensors)
    loaded.close()


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_any_batch(name: str, local: Session) -> None:
    model = small(name)
    proto = onnx.load_from_string(exported(model, given(model, 0, BATCH), 1))
    ((batch,),) = names(proto)
    loaded = local.load(mlc.compile(proto, "host", dims={batch: f"<={BATCH}"}))
    for count in (1, BATCH):
        tensors = given(model, 0, count)
        (found,) = loaded.run({k: v.numpy() for k, v in tensors.items()}).values()
        agree(found, model, tensors)
    loaded.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, local: Session) -> None:
    model = small(name)
    tensors = given(model, 40)
    with torch.no_grad():
        program = torch.export.export(Outputs(model, [*tensors]), tuple(tensors.values()))
    compiled = mlc.compile(program, "host")
    loaded = local.load(compiled)
    inputs = dict(zip(loaded.model.arguments, tensors.values(), strict=False))
    (found,) = loaded.run({k: v.numpy() for k, v in inputs.items()}).values()
    agree(found, model, tensors)
    loaded.close()
