"""Reads a decoder's ONNX file as a function of tokens, with its cache as states.

Inputs are recognized by the names of transformers, optimum and onnxruntime-genai: `input_ids`,
`attention_mask`, `position_ids`, `past_key_values.N.key`, `present.N.key`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from ..errors import DecodeError, GraphError
from ..frontend import from_onnx
from ..frontend.onnx_file import read_model
from ..graph import Function
from ..graph.decoder import Parts, with_cache
from ..graph.decoder_loop import with_loop
from ..graph.dims import symbol
from ..graph.states import AFTER, BEFORE, words_of
from ..ir import Dim

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
BRANCH = "use_cache_branch"  # of optimum's merged decoders: whether there is a past
LENGTH = 512  # tokens in a cache, by default
STEP = 32  # tokens that one step reads, at most
CACHES = ("float32", "float16", "int8")  # the dtypes of a cache
WRITTEN = 2048  # tokens that one run writes, at most, for a text without end
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def read_decoder(
    path: str | Path,
    length: int = LENGTH,
    window: int | None = None,
    *,
    step: int = STEP,
    cache: str = "",
    loop: bool = False,
    converters: Mapping[Any, Any] | None = None,
) -> Function:
    """The graph of a decoder with a cache of `length` tokens (graph/decoder.py), whose steps read
    up to `step` tokens. cache: the dtype of keys and values, one of CACHES; by default the model's
    own. loop: with the loop that chooses tokens (graph/decoder_loop.py). Raises DecodeError,
    ImporterError."""
    if cache not in ("", *CACHES):
        near = get_close_matches(cache, CACHES, 1, 0.4) or CACHES
        raise DecodeError(f"a cache cannot be stored as '{cache}'", mend=" or ".join(near))
    file = Path(path)
    proto = read_model(file)
    step = min(step, length)
    parts, dims, values = _read(proto, str(file), length, step)
    function = from_onnx(file, None, dims, values=values, converters=converters)
    function = replace(function, name=file.stem)
    try:
        cached = with_cache(function, parts, length, window, cache)
    except GraphError as error:
        raise DecodeError(error.what, where=str(file), mend=error.mend) from error
    if not loop:
        return cached
    return with_loop(cached, IDS, length if window is None else max(length, WRITTEN))


def _read(
    proto: ModelProto, where: str, length: int, step: int
) -> tuple[Parts, dict[str, Dim | str], dict[str, Any]]:
    """The decoder's parts, its named dimensions, and the inputs with known values."""
    inputs = inputs_of(proto)
    outputs = {o.name: o for o in proto.graph.output}
    past = past_of(inputs, outputs)
    lacking = [] if IDS in inputs else [IDS]
    lacking += [] if past else ["past_key_values.0.key (and present.0.key among its outputs)"]
    if lacking or LOGITS not in outputs:
        what = "this model is not a text decoder"
        what += f": it has no input {' and none '.join(lacking)}" if lacking else ""
        what += "" if LOGITS in outputs else f"; it has no output {LOGITS}"
        near = get_close_matches("decoder", list(inputs), 3, 0.4) or list(inputs)[:5]
        raise DecodeError(
            what,
            where=f"{where}, of inputs {', '.join(near) or 'none'}",
            mend="a model with its cache: optimum-cli export onnx --task text-generation-with-past",
        )
    known = {IDS, MASK, POSITIONS, BRANCH, *past}
    unknown = [name for name in inputs if name not in known]
    if unknown:
        raise DecodeError(
            f"nothing says what the decoder's input {', '.join(unknown[:3])} is",
            where=where,
            mend=f"a model of {IDS}, {MASK}, {POSITIONS} and a cache alone",
        )
    dims: dict[str, Dim | str] = {}
    for name, axis, most in ((IDS, 1, step), *((name, 2, length) for name in past)):
        extent = dimension_of(inputs, name, axis)
        if extent:
            dims.setdefault(extent, f"<={most}")
    if len(inputs[IDS].type.tensor_type.shape.dim) != 2:
        raise DecodeError(f"the input {IDS} is of no shape [1, tokens]", where=where)
    steps, rows = dimension_of(inputs, IDS, 1), dimension_of(inputs, next(iter(past)), 2)
    if not rows:
        raise DecodeError(
            "the decoder's caches have a fixed number of rows",
            where=where,
            mend="a model exported with a dynamic length of its past",
        )
    if (places := dimension_of(inputs, POSITIONS, 1)) not in ("", steps):
        dims[places] = symbol(steps)
    if seen := dimension_of(inputs, MASK, 1):
        ids = inputs[IDS].type.tensor_type.shape.dim
        dims[seen] = symbol(rows) + (symbol(steps) if steps else ids[1].dim_value)
    for name in (IDS, POSITIONS, MASK, *past):
        if batch := dimension_of(inputs, name, 0):
            dims[batch] = 1
    values = {BRANCH: np.array([True])} if BRANCH in inputs else {}
    parts = Parts(
        IDS, LOGITS, past, MASK if MASK in inputs else None,
        POSITIONS if POSITIONS in inputs else None,
    )  # fmt: skip
    return parts, dims, values


def inputs_of(proto: ModelProto) -> dict[str, ValueInfoProto]:
    """The inputs of a model by name, without its weights."""
    weights = {t.name for t in proto.graph.initializer}
    return {i.name: i for i in proto.graph.input if i.name not in weights}


def past_of(
    inputs: Mapping[str, ValueInfoProto], outputs: Mapping[str, ValueInfoProto]
) -> dict[str, str]:
    """Each cache among the inputs, with the output that is its next value."""
    ends = {words_of(name, AFTER): name for name in outputs if name != LOGITS}
    found: dict[str, str] = {}
    for name, info in inputs.items():
        own = info.type.tensor_type
        if own.elem_type in FLOATS and len(own.shape.dim) == 4:
            after = ends.get(words_of(name, BEFORE))
            if after is not None:
                found[name] = after
    return found


def dimension_of(inputs: Mapping[str, ValueInfoProto], name: str, axis: int) -> str:
    """The name of an input's dimension; "" if it is a number or does not exist."""
    shape = inputs[name].type.tensor_type.shape.dim if name in inputs else ()
    return shape[axis].dim_param if axis < len(shape) else ""
