"""Attention as one operator: products with keys, their softmax, and products with values.

    attention(q, k, v[, bias][, scale of k, scale of v])
    x[b, h, s, j] = scale * q[b, h, s] . k[b, h', j] + bias[b, h, s, j]
    y[b, h, s] = sum over j of softmax(x[b, h, s])[j] * v[b, h', j]

q is [B, H, S, D], k [B, K, M, D], v [B, K, M, E], and y [B, H, S, E]: H / K heads of queries share
a head of keys, h' = h * K // H. bias broadcasts to [B, H, S, L].

k and v may be int8, with a float32 scale for each row, [B, K, M, 1]; a value is then row times
scale (attribute scaled).

Attributes: scale. rows: L, the number of valid keys (default: M); the keys after them are not
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
from .reference import exact
from .registry import Array, Attrs, Operator, TensorType, register


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    return [attend(inputs, attrs, AttentionTile())]


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    """One head at a time: only its scores are in memory."""
    first = attrs.get("heads_first", HEADS_FIRST)
    q, k, v = (x if f else x.swapaxes(1, 2) for x, f in zip(inputs[:3], first, strict=False))
    n = sizes_of([TensorType(x.shape, str(x.dtype)) for x in inputs], attrs)
    length = int(n.length)  # type: ignore[arg-type]
    scales: Sequence[Array] = ()
    if attrs.get("scaled"):
        *inputs, of_keys, of_values = inputs
        scales = of_keys, of_values
    count = q.shape[2]
    own = np.arange(count)[:, None] + (length - count)
    keys = np.arange(length)
    hidden = np.zeros((count, length), bool)
    if attrs.get("causal"):
        hidden |= keys > own
    if attrs.get("window"):
        hidden |= keys <= own - attrs["window"]
    biases = [np.broadcast_to(b, (*q.shape[:2], count, length)) for b in inputs[3:]]
    y = np.empty((*q.shape[:3], v.shape[3]), inputs[0].dtype)
    for at in np.ndindex(*q.shape[:2]):
        source = at[0], at[1] // n.group
        head, *rows = (exact(x) for x in (q[at], k[source][:length], v[source][:length]))
        for scale, row in zip(scales, rows, strict=False):
            row *= scale[source][:length]
        x = head @ rows[0].T * attrs["scale"]
        if attrs.get("softcap"):
            x = np.tanh(x / attrs["softcap"]) * attrs["softcap"]
        for bias in biases:
            x += bias[at]
        x[hidden] = LOW
        power = np.exp(x - x.max(-1, keepdims=True))
        y[at] = power / power.sum(-1, keepdims=True) @ rows[1]
    return [np.ascontiguousarray(y if first[3] else y.swapaxes(1, 2))]


def _products(types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> int:
    n = sizes_of(types, attrs)
    rows = n.batch * n.heads * n.count
    if not isinstance(rows, int) or not isinstance(n.length, int):
        raise TypeError("the length is symbolic")
    return rows * n.length * (n.width + n.values)


register(Operator(NAME, _compute, _evaluate, "anchor", multiplies=_products))
