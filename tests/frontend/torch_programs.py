"""Calls of torch's, each with tensors to call it on: what a front end of PyTorch has to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # which has torch.ops.quantized_decomposed
import torch.nn.functional as F
from torch import Tensor, nn

torch.manual_seed(0)

Program = tuple[Callable[..., Any], tuple[Tensor, ...]]


def floats(*shape: int, low: float = -2, high: float = 2) -> Tensor:
    return torch.rand(shape) * (high - low) + low


def ints(*shape: int, low: int = -8, high: int = 8, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


X, Y = floats(2, 3, 5), floats(2, 3, 5)
POSITIVE = floats(3, 4, low=0.1, high=4)
UNIT = floats(3, 4, low=-0.9, high=0.9)
WHOLE, COUNTS = ints(3, 4), ints(3, 4, low=1)
TRUTH = torch.rand(2, 3, 5) > 0.5
IMAGE = floats(2, 6, 9, 8)
ROWS = ints(4, low=0, high=3)

PROGRAMS: dict[str, Program] = {}


def add(name: str, function: Callable[..., Any], *tensors: Tensor) -> None:
    assert name not in PROGRAMS
    PROGRAMS[name] = (function, tensors)


# ---------------------------------------------------------------------------------- elementwise

for _name in ("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "relu", "round", "sign",
              "sigmoid", "sin", "sinh", "cosh", "tan", "tanh", "atan", "asinh", "trunc", "square",
              "isnan", "isinf", "logical_not", "erfc", "frac"):  # fmt: skip
    add(_name, getattr(torch, _name), X)
for _name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal"):
    add(_name, getattr(torch, _name), POSITIVE)
for _name in ("acos", "asin", "atanh"):
    add(_name, getattr(torch, _name), UNIT)
add("acosh", torch.acosh, POSITIVE + 1)
add("exp of ints", torch.exp, WHOLE)
add("abs of ints", torch.abs, WHOLE)
for _name in ("relu6", "hardswish", "hardsigmoid", "silu", "mish", "selu", "celu", "elu",
              "softsign", "logsigmoid", "tanhshrink", "hardtanh", "softplus", "gelu"):  # fmt: skip
    add(f"F.{_name}", getattr(F, _name), 4 * X)
add("gelu by tanh", lambda x: F.gelu(x, approximate="tanh"), X)
add("elu of alpha", lambda x: F.elu(x, 0.7), X)
add("softplus of beta", lambda x: F.softplus(x, 2), X)
add("leaky_relu", lambda x: F.leaky_relu(x, 0.2), X)
add("prelu", F.prelu, X, floats(3))
add("threshold", lambda x: F.threshold(x, 0.1, 20), X)
add("hardshrink", F.hardshrink, X)
add("glu", F.glu, floats(2, 6))
add("log1p of little", torch.log1p, 1e-6 * X)
add("expm1 of little", torch.expm1, 1e-6 * X)

for _name in ("add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder",
              "floor_divide", "eq", "ne", "lt", "le", "gt", "ge", "atan2"):  # fmt: skip
    add(f"{_name} of floats", getattr(torch, _name), X, Y)
    if _name != "atan2":
        add(f"{_name} of ints", getattr(torch, _name), WHOLE, COUNTS)
        add(f"{_name} of mixed", getattr(torch, _name), WHOLE.to(torch.int32), POSITIVE)
    add(f"{_name} broadcast", getattr(torch, _name), X, Y[:1, :, :1])
for _f in (torch.add, torch.mul, torch.lt, torch.eq, torch.pow, torch.remainder):
    add(f"{_f.__name__} of a number", lambda x, f=_f: f(x, 3), X)
    add(f"{_f.__name__} of an int and a float", lambda x, f=_f: f(x, 2.5), COUNTS)
add("add of alpha", lambda x, y: torch.add(x, y, alpha=2), X, Y)
add("sub of alpha", lambda x, y: torch.sub(x, y, alpha=0.5), X, Y)
add("rsub", lambda x: 2 - x, X)
add("div by trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), 9 * X, Y)
add(
    "div by floor",
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    WHOLE,
    ints(3, 4, low=-9, high=-1),
)
for _power in (2, 3, 0.5, -1, 1.7, -0.5):
    add(f"pow {_power}", lambda x, p=_power: x**p, POSITIVE)
add("pow of tensors", torch.pow, POSITIVE, UNIT)
add("pow of ints", lambda x: x**2, WHOLE)
add("pow to the x", lambda x: 2**x, X)
for _name in (
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
):
    add(f"{_name} of bools", getattr(torch, _name), TRUTH, TRUTH.flip(0))
    add(f"{_name} of ints", getattr(torch, _name), WHOLE, COUNTS)
add("bitwise_not", torch.bitwise_not, WHOLE)
add("bitwise_not of bools", torch.bitwise_not, TRUTH)
add("sum of bools", lambda x, y: x + y, TRUTH, TRUTH.flip(0))
add("product of bools", lambda x, y: x * y, TRUTH, TRUTH.flip(0))
add("clamp", lambda x: x.clamp(-0.5, 1), X)
add("clamp below", lambda x: x.clamp(min=0.3), X)
add("clamp by tensors", torch.clamp, X, Y - 1, Y + 1)
add("clamp of ints", lambda x: x.clamp(-2, 3), WHOLE)
add("where", torch.where, TRUTH, X, Y)
add("where of numbers", lambda t, x: torch.where(t, x, -1.0), TRUTH, X)
add("masked_fill", lambda x, t: x.masked_fill(t, -9.0), X, TRUTH)
add("lerp", torch.lerp, X, Y, torch.tensor(0.3))
add("addcmul", torch.addcmul, X, Y, Y)
add("to int", lambda x: x.to(torch.int32), 5 * X)
add("to bool", lambda x: x.bool(), WHOLE)
add("to double", lambda x: x.double(), X)
add("half and back", lambda x: x.half().float(), X)
add("nan_to_num", torch.nan_to_num, torch.tensor([1.0, float("nan"), float("inf")]))

# ----------------------------------------------------------------------------------- reductions

for _f in (torch.mean, torch.sum, torch.prod, torch.amax, torch.amin, torch.std, torch.var,
           torch.logsumexp):  # fmt: skip
    add(f"{_f.__name__} over one", lambda x, f=_f: f(x, 1), X)
    add(f"{_f.__name__} kept", lambda x, f=_f: f(x, -1, keepdim=True), X)
for _name in ("mean", "sum", "prod", "max", "min", "std", "var", "argmax", "argmin"):
    add(f"{_name} of all", getattr(torch, _name), X)
add("mean over two", lambda x: x.mean((0, 2)), X)
add("sum of ints", lambda x: x.sum(0), WHOLE)
add("sum of truths", lambda x: x.sum(), TRUTH)
add("biased variance", lambda x: x.var((1, 2), correction=0), X)
add("var_mean", lambda x: torch.var_mean(x, 1), X)
add("any", lambda x: x.any(1), TRUTH)
add("all of all", lambda x: x.all(), TRUTH)
add("max with places", lambda x: torch.max(x, 1), X)
add("min with places", lambda x: torch.min(x, 2, keepdim=True), X)
add("argmax kept", lambda x: torch.argmax(x, 1, keepdim=True), X)
add("cumsum", lambda x: torch.cumsum(x, 1), X)
add("cumprod", lambda x: torch.cumprod(x, 2), X)
add("norm", lambda x: torch.linalg.vector_norm(x, dim=1), X)
add("norm of order 1", lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 2)), X)
add("norm of order 3", lambda x: torch.linalg.vector_norm(x, 3, dim=1), X)
add("largest of all", lambda x: torch.linalg.vector_norm(x, float("inf")), X)
add("normalize", lambda x: F.normalize(x, dim=1), X)
add("softmax", lambda x: F.softmax(x, -1), X)
add("log_softmax", lambda x: F.log_softmax(x, 1), X)
add("softmin", lambda x: F.softmin(x, 0), X)
add("topk", lambda x: torch.topk(x, 2), X)
add("smallest", lambda x: torch.topk(x, 2, 1, largest=False), X)
add("sort", lambda x: torch.sort(x, 1), X)
add("sort down", lambda x: torch.sort(x, descending=True), X)
add("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 1), X, Y)

# --------------------------------------------------------------------------------------- shapes

add("view", lambda x: x.view(3, -1), X)
add("reshape of a transpose", lambda x: x.transpose(0, 2).reshape(-1), X)
add("flatten", lambda x: x.flatten(1), X)
add("unflatten", lambda x: x.unflatten(2, (5, 1)), X)
add("permute", lambda x: x.permute(2, 0, 1), X)
add("T", lambda x: x.T, POSITIVE)
add("squeeze", lambda x: x[:1].squeeze(), X)
add("squeeze of one", lambda x: x[:, :1].squeeze(1), X)
add("unsqueeze", lambda x: x.unsqueeze(-1), X)
add("expand", lambda x: x[:, :1].expand(-1, 4, 5), X)
add("expand_as", lambda x, y: x.expand_as(y), X[0], Y)
add("repeat", lambda x: x.repeat(2, 1, 3), X)
add("repeat to higher rank", lambda x: x.repeat(2, 1, 1, 1), X)
add("repeat_interleave", lambda x: x.repeat_interleave(2, 1), X)
add("cat", lambda x, y: torch.cat([x, y, x], 1), X, Y)
add("cat of dtypes", lambda x, y: torch.cat([x, y]), WHOLE, POSITIVE)
add("stack", lambda x, y: torch.stack([x, y], 1), X, Y)
add("split", lambda x: x.split(2, 2), X)
add("split by sizes", lambda x: x.split([1, 4], 2), X)
add("chunk", lambda x: x.chunk(2, 2), X)
add("unbind", lambda x: x.unbind(1), X)
add("select", lambda x: x[:, -1], X)
add("slice", lambda x: x[:, 1:, ::2], X)
add("slice beyond", lambda x: x[:, :99, -3:-1], X)
add("flip", lambda x: x.flip(0, 2), X)
add("roll", lambda x: torch.roll(x, (1, -2), (1, 2)), X)
add("roll of all", lambda x: torch.roll(x, 4), X)
add("narrow", lambda x: x.narrow(2, 1, 3), X)
add("tril", torch.tril, X)
add("triu", lambda x: torch.triu(x, 1), X)
add("diagonal", lambda x: torch.diagonal(x, dim1=1, dim2=2), X)
add("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), X)
add("cutting pad", lambda x: F.pad(x, (-1, 2)), X)
for _mode in ("reflect", "replicate", "circular"):
    add(f"pad by {_mode}", lambda x, m=_mode: F.pad(x, (1, 2, 2, 1), m), IMAGE)
add("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), floats(1, 8, 3, 4))
add("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), floats(1, 2, 6, 4))
add("channel_shuffle", lambda x: F.channel_shuffle(x, 3), IMAGE)
add("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), X[0, 0], Y[0, 1])
add("unfold", lambda x: F.unfold(x, 3, padding=1), IMAGE)

# -------------------------------------------------------------------------------------- indices

add("embedding", F.embedding, ROWS, floats(3, 4))
add("index_select", lambda x, i: x.index_select(1, i), X, ROWS)
add("index of one", lambda x, i: x[:, i], X, ROWS)
add("index of two", lambda x, i: x[:, i, i - 1], X, ROWS)
add("index of first and last", lambda x, i: x[i % 2, :, i], X, ROWS)
add("index of a list", lambda x: x[[0, 1, 0]], X)
add("gather", lambda x, i: x.gather(1, i), X, ints(2, 2, 5, low=0, high=3))
add("scatter", lambda x, i, s: x.scatter(1, i, s), X, torch.tensor([[[0], [2]], [[1], [0]]]), Y)
add("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), X, ints(2, 2, 5, low=0, high=3), Y)
add("one_hot", lambda i: F.one_hot(i, 3), ROWS)


def _write_slice(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:] = 0
    y[0, 0] += 1
    return y


def _write_rows(x: Tensor, i: Tensor, values: Tensor) -> Tensor:
    y = x.clone()
    y[i] = values
    return y


add("write a slice", _write_slice, X)
add("write rows", _write_rows, POSITIVE, torch.tensor([2, 0]), floats(2, 4))
add("index_add", lambda x, i, v: x.index_add(0, i, v), POSITIVE, ROWS, floats(4, 4))

# ------------------------------------------------------------------------------------ constants

add("arange", lambda x: x + torch.arange(5), X)
add("linspace", lambda x: x + torch.linspace(0, 1, 5), X)
add("full", lambda x: x + torch.full((5,), 0.25), X)
add("zeros_like", lambda x: torch.zeros_like(x) + torch.ones_like(x), X)
add("new_full", lambda x: x + x.new_full((5,), 2.0) + x.new_zeros(5), X)
add("eye", lambda x: x @ torch.eye(5), X)
add("tensor", lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), X)

# --------------------------------------------------------------------------------------- layers

add("linear", F.linear, X, floats(4, 5), floats(4))
add("linear by a vector", F.linear, X, floats(5))
add("linear of a vector", F.linear, X[0, 0], floats(4, 5))
for _shapes in ("5 5", "3,5 5", "5 5,4", "2,3,5 5,4", "2,3,5 2,5,4", "3,5 2,5,4", "2,1,3,5 4,5,2"):
    _left, _right = (tuple(map(int, shape.split(","))) for shape in _shapes.split())
    add(f"matmul {_shapes}", torch.matmul, floats(*_left), floats(*_right))
add("addmm", lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), floats(4), X[0], floats(5, 4))
add("baddbmm", torch.baddbmm, floats(2, 3, 4), X, floats(2, 5, 4))
add("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), X, Y)
add("conv1d", lambda x, w: F.conv1d(x, w, stride=2, padding=1), floats(2, 3, 9), floats(4, 3, 3))
add("conv2d", lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2), 2), IMAGE,
    floats(4, 3, 3, 2), floats(4))  # fmt: skip
add("conv2d of one image", lambda x, w: F.conv2d(x, w), IMAGE[0], floats(4, 6, 3, 3))
add("conv2d padded to the same", lambda x, w: F.conv2d(x, w, padding="same"), IMAGE,
    floats(4, 6, 4, 3))  # fmt: skip
add("conv3d", lambda x, w: F.conv3d(x, w, padding=1), floats(1, 2, 4, 5, 3), floats(3, 2, 2, 3, 3))
add("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=2), floats(2, 3, 5),
    floats(3, 4, 3))  # fmt: skip
add("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, 2), IMAGE,
    floats(6, 2, 3, 3), floats(4))  # fmt: skip
add("max_pool1d", lambda x: F.max_pool1d(x, 2), floats(2, 3, 8))
add("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE)
add("avg_pool2d larger than its data", lambda x: F.avg_pool2d(x, 9999, ceil_mode=True), IMAGE)
add("max_pool2d ceiled", lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), IMAGE)
add("max_pool2d dilated", lambda x: F.max_pool2d(x, 2, 1, dilation=2), IMAGE)
add("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2), floats(2, 3, 8))
add("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE)
add(
    "avg_pool2d of what is there",
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    IMAGE,
)
add("avg_pool2d by a divisor", lambda x: F.avg_pool2d(x, 3, divisor_override=5), IMAGE)
add("avg_pool3d", lambda x: F.avg_pool3d(x, 2), floats(1, 2, 4, 5, 6))
add("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE)
add("adaptive_avg_pool2d evenly", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMAGE)
add("adaptive_avg_pool2d unevenly", lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMAGE)
add("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 4), floats(2, 3, 8))
add("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 2)), IMAGE)
add("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 5), w, b), X, floats(3, 5), floats(3, 5))
add("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), IMAGE, floats(6), floats(6))
add("instance_norm", lambda x: F.instance_norm(x), IMAGE)
add("rms_norm", lambda x, w: F.rms_norm(x, (5,), w, 1e-6), X, floats(5))
add("batch_norm", lambda x, m, v: F.batch_norm(x, m, v), IMAGE, floats(6), floats(6, low=0.5))
add(
    "batch_norm by its own statistics",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    IMAGE,
    floats(6),
    floats(6),
)
add("local_response_norm", lambda x: F.local_response_norm(x, 3), IMAGE)
Q, K, V = floats(2, 4, 5, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 3)
add("attention", F.scaled_dot_product_attention, Q, K, V)
add("causal attention", lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), Q, K)
add("attention masked", F.scaled_dot_product_attention, Q, K, V, torch.rand(2, 1, 5, 6) > 0.3)
add("attention masked whole", F.scaled_dot_product_attention, Q, K, V, torch.zeros(5, 6).bool())
add("attention biased", F.scaled_dot_product_attention, Q, K, V, floats(5, 6))
add("attention of groups", lambda q, k, v: F.scaled_dot_product_attention(
    q, k, v, scale=0.2, enable_gqa=True), Q, K[:, :2], V[:, :2])  # fmt: skip
for _size in ({"scale_factor": 2}, {"size": (5, 13)}, {"scale_factor": 1.5}):
    add(f"nearest {_size}", lambda x, s=_size: F.interpolate(x, **s), IMAGE)
    add(f"bilinear {_size}", lambda x, s=_size: F.interpolate(x, **s, mode="bilinear"), IMAGE)
add("bilinear of corners", lambda x: F.interpolate(
    x, (4, 17), mode="bilinear", align_corners=True), IMAGE)  # fmt: skip
add("bicubic", lambda x: F.interpolate(x, (12, 5), mode="bicubic"), IMAGE)
add("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE,
    floats(2, 4, 3, 2, low=-1.2, high=1.2))  # fmt: skip
add("grid_sample of corners", lambda x, g: F.grid_sample(
    x, g, "nearest", "border", True), IMAGE, floats(2, 4, 3, 2, low=-1.2, high=1.2))  # fmt: skip
add("affine_grid", lambda t: F.affine_grid(t, [2, 1, 4, 5], align_corners=True), floats(2, 2, 3))

_Q = torch.ops.quantized_decomposed


def _quantized_linear(x: Tensor) -> Tensor:
    """As pt2e writes it, weights per channel and in seven bits."""
    q = _Q.quantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8)
    scales, zeros = torch.tensor([0.01, 0.02, 0.03, 0.04]), torch.zeros(4, dtype=torch.int64)
    weights = torch.arange(-10, 10, dtype=torch.int8).reshape(4, 5)
    w = _Q.dequantize_per_channel(weights, scales, zeros, 0, -127, 127, torch.int8)
    y = F.linear(_Q.dequantize_per_tensor(q, 0.02, 3, -128, 127, torch.int8), w)
    q = _Q.quantize_per_tensor(y, 0.05, 128, 0, 200, torch.uint8)
    return _Q.dequantize_per_tensor(q, 0.05, 128, 0, 200, torch.uint8)


add("quantized linear", _quantized_linear, X)
SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
add("quantize per channel",
    lambda x: _Q.quantize_per_channel(x, SCALES, ZEROS, 1, -8, 7, torch.int8), X)  # fmt: skip

MODULES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "lstm": (nn.LSTM(5, 4, batch_first=True), (X,)),
    "gru": (nn.GRU(5, 4, 2, bidirectional=True), (X,)),
    "rnn": (nn.RNN(5, 4), (X,)),
    "rnn by relu": (nn.RNN(5, 4, nonlinearity="relu", bias=False, bidirectional=True), (X,)),
    "lstm of two layers": (nn.LSTM(5, 4, 2, bidirectional=True, bias=False), (X,)),
    "gru batch first": (nn.GRU(5, 4, batch_first=True), (X,)),
    "multihead attention": (nn.MultiheadAttention(8, 2, batch_first=True), (Q[0], Q[0], Q[0])),
    "encoder layer": (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), (Q[0],)
    ),
    "decoder layer": (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (Q[0], K[0])),
    "dropout": (nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5)), (X,)),
    "batch norm without learning": (nn.BatchNorm2d(6, affine=False), (IMAGE,)),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), (X,)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), (X,)),
}  # fmt: skip
