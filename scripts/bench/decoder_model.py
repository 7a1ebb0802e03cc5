"""Writes a decoder of random 4-bit weights, of the shape of Qwen2-0.5B, as onnxruntime-genai's
builder does.

    python scripts/bench/decoder_model.py FOLDER [--layers 24] [--vocabulary 151936]

FOLDER/model.onnx has onnxruntime's operators: MatMulNBits at accuracy level 4 (blocks of 32, a
float32 scale each), GroupQueryAttention, SkipSimplifiedLayerNormalization, GatherBlockQuantized
(blocks of 128). As with its option prune_lm_head, logits are those of the last token. The weights
are in FOLDER/model.onnx.data, about 380 MB, written piece by piece.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

BLOCK, EMBEDDED = 32, 128  # numbers of a block: of layers, of the embedding
PAGE = 4096  # bytes; each weight begins at a multiple
DATA = "model.onnx.data"
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


@dataclass(frozen=True, slots=True)
class Sizes:
    """Those of Qwen2-0.5B by default (its config.json). longest: positions of the angles' table."""

    layers: int = 24
    width: int = 896
    inner: int = 4864
    heads: int = 14
    kept: int = 2
    vocabulary: int = 151_936
    longest: int = 2048

    @property
    def head(self) -> int:
        return self.width // self.heads


class _File:
    """A graph as it grows, and its weights as they are written."""

    def __init__(self, data: BinaryIO, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._data = data

    def const(self, array: NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self._data.write(b"\0" * (-self._data.tell() % PAGE))
        tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        places = {"location": DATA, "offset": self._data.tell(), "length": array.nbytes}
        for key, value in places.items():
            tensor.external_data.add(key=key, value=str(value))
        self._data.write(np.ascontiguousarray(array).data)
        self.weights.append(tensor)
        return name

    def small(self, value: Any) -> str:
        """A number that shapes depend on: in the file itself."""
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value, np.int64), name))
        return name

    def __call__(self, op: str, *inputs: str, own: bool = False, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        domain = "com.microsoft" if own else ""
        node = helper.make_node(op, [*inputs], [name], name=name, domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def product(self, x: str, inputs: int, outputs: int) -> str:
        blocks = inputs // BLOCK
        packed = self.random.integers(0, 256, (outputs, blocks, BLOCK // 2), np.uint8)
        scales = self.random.uniform(0.5, 1, (outputs, blocks)) / (4.6 * np.sqrt(inputs))
        return self(
            "MatMulNBits", x, self.const(packed), self.const(scales.astype(np.float32)), own=True,
            K=inputs, N=outputs, bits=4, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def embedding(self, ids: str, rows: int, width: int) -> str:
        packed = self.random.integers(0, 256, (rows, width // 2), np.uint8)
        scales = self.random.uniform(0.5, 1, (rows, width // EMBEDDED)) / 4.6
        return self(
            "GatherBlockQuantized", self.const(packed), ids,
            self.const(scales.astype(np.float32)), own=True, bits=4, block_size=EMBEDDED,
            gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def norm(self, x: str, skip: str | None, width: int) -> tuple[str, str]:
        """The norm of x, to which skip is added, and that sum."""
        scale = self.const(self.random.uniform(0.5, 1.5, width).astype(np.float32))
        if skip is None:
            made = self("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-6)
            return made, x
        made = self("SkipSimplifiedLayerNormalization", x, skip, scale, own=True, epsilon=1e-6)
        self.nodes[-1].output.extend(["", "", total := f"{made}_sum"])
        return made, total


def write_decoder(folder: Path, sizes: Sizes | None = None, seed: int = 0) -> Path:
    """The path of the model's file."""
    of = sizes or Sizes()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DATA).open("wb") as data:
        g = _File(data, seed)
        presents = _layers(g, of)
    value = helper.make_tensor_value_info
    caches = [f"past_key_values.{n}.{kind}" for n in range(of.layers) for kind in ("key", "value")]
    inputs = [value("input_ids", INT64, ["batch", "sequence"]),
              value("attention_mask", INT64, ["batch", "total"])]  # fmt: skip
    inputs += [value(name, FLOAT, ["batch", of.kept, "past", of.head]) for name in caches]
    outputs = [value("logits", FLOAT, ["batch", 1, of.vocabulary])]
    outputs += [value(name, FLOAT, ["batch", of.kept, "total", of.head]) for name in presents]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    )
    return path


def _layers(g: _File, of: Sizes) -> list[str]:
    """Adds all nodes; gives the names of the caches that come back."""
    angles = np.arange(of.longest)[:, None] / 1e6 ** (np.arange(of.head // 2) / (of.head // 2))
    tables = [g.const(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    count = g("ReduceSum", "attention_mask", g.small([1]), keepdims=0)
    seen = g("Cast", g("Sub", count, g.small(1)), to=TensorProto.INT32)
    total = g("Cast", g("Gather", g("Shape", "attention_mask"), g.small(1)), to=TensorProto.INT32)
    x, skip = g.embedding("input_ids", of.vocabulary, of.width), None
    presents: list[str] = []
    for layer in range(of.layers):
        normed, x = g.norm(x, skip, of.width)
        q = g.product(normed, of.width, of.width)
        k, v = (g.product(normed, of.width, of.kept * of.head) for _ in range(2))
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        y = g("GroupQueryAttention", q, k, v, *past, seen, total, *tables, own=True,
              num_heads=of.heads, kv_num_heads=of.kept, do_rotary=1)  # fmt: skip
        own = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        g.nodes[-1].output.extend(own)
        presents += own
        normed, x = g.norm(x, g.product(y, of.width, of.width), of.width)
        gate, up = (g.product(normed, of.width, of.inner) for _ in range(2))
        both = g("Mul", g("Mul", gate, g("Sigmoid", gate)), up)
        skip = g.product(both, of.inner, of.width)
    normed, _ = g.norm(x, skip, of.width)
    last = g("Gather", normed, g.small([-1]), axis=1)
    g.product(last, of.width, of.vocabulary)
    g.nodes[-1].output[0] = "logits"
    return presents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=Sizes().layers)
    parser.add_argument("--vocabulary", type=int, default=Sizes().vocabulary)
    given = parser.parse_args()
    print(write_decoder(given.folder, Sizes(layers=given.layers, vocabulary=given.vocabulary)))


if __name__ == "__main__":
    main()
