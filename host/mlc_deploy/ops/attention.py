"""Attention as one operator: products with keys, their softmax, and products with values.

    attention(q, k, v[, bias][, scale of k, scale of v])
    x[b, h, s, j] = scale * q[b, h, s] . k[b, h', j] + bias[b, h, s, j]
    y[b, h, s] = sum over j of softmax(x[b, h, s])[j] * v[b, h', j]

q is [B, H, S, D], k [B, K, M, D], v [B, K, M, E], and y [B, H, S, E]: H / K heads of queries share
a head of keys, h' = h * K // H. bias broadcasts to [B, H, S, L].

k and v may be int8, with a float32 scale for each row, [B, K, M, 1]; a value is then row times
scale (attribute scaled).

Attributes: scale. rows: L, the number of valid keys (default: M); the keys behind them are not
read. causal: query s sees key j where j <= L - S + s. window: it sees only keys j > L - S + s -
window; 0 for all. softcap: scores x become softcap * tanh(x / softcap); 0 for none. heads_first:
for each of q, k, v and y, whether heads are dimension 1, as above; if not, heads are dimension 2
and rows dimension 1.

A query that sees no key at all gives a mean of some values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..te import Tensor
from .attention_loops import LOW, AttentionTile, attend
from .attention_sizes import HEADS_FIRST, NAME, sizes_of
from .registry import Array, Attrs, Operator, TensorType, register


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    return [attend(inputs, attrs, AttentionTile())]


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    first = attrs.get("heads_first", HEADS_FIRST)
    q, k, v = (
        (x if f else x.swapaxes(1, 2)).astype(np.float32)
        for x, f in zip(inputs[:3], first, strict=False)
    )
    n = sizes_of([TensorType(x.shape, str(x.dtype)) for x in inputs], attrs)
    length = int(n.length)  # type: ignore[arg-type]
    if attrs.get("scaled"):
        *inputs, of_keys, of_values = inputs
        k, v = k * of_keys, v * of_values
    k, v = (np.repeat(x[:, :, :length], n.group, 1) for x in (k, v))
    x = q @ k.swapaxes(2, 3) * np.float32(attrs["scale"])
    if attrs.get("softcap"):
        x = np.tanh(x / attrs["softcap"]) * attrs["softcap"]
    for bias in inputs[3:]:
        x = x + bias.astype(np.float32)
    own = np.arange(q.shape[2])[:, None] + (length - q.shape[2])
    keys = np.arange(length)
    if attrs.get("causal"):
        x = np.where(keys <= own, x, LOW)
    if attrs.get("window"):
        x = np.where(keys > own - attrs["window"], x, LOW)
    power = np.exp(x - x.max(-1, keepdims=True))
    y = power / power.sum(-1, keepdims=True) @ v
    y = y if first[3] else y.swapaxes(1, 2)
    return [np.ascontiguousarray(y).astype(inputs[0].dtype)]


def _products(types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> int:
    n = sizes_of(types, attrs)
    rows = n.batch * n.heads * n.count
    if not isinstance(rows, int) or not isinstance(n.length, int):
        raise TypeError("the length is symbolic")
    return rows * n.length * (n.width + n.values)


register(Operator(NAME, _compute, _evaluate, "anchor", multiplies=_products))
