"""Reads a decoder of PyTorch as a function of tokens: a program of torch.export with its cache in
buffers, or a module, which is exported here.

    program = torch.export.export(module, (input_ids[1, S], cache_position[S]))

transformers' TorchExportableModuleWithStaticCache is such a module. A language model of
transformers without such a cache is wrapped in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError, GraphError
from ..frontend import TorchNode, from_torch
from ..frontend.layers.shapes import reshape, rows
from ..frontend.node import shape_of
from ..frontend.torch import read_program
from ..frontend.torch_dims import shapes_of
from ..frontend.torch_program import calls_of, operator_key
from ..graph import Function
from ..graph.static_cache import with_static_cache
from ..ir import is_const
from .model import IDS, LENGTH, STEP

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module

WRITES = ("aten.index_copy", "aten.index_copy_")
PLACES = "cache_position"
OWN = "static"  # transformers' name of a cache with a fixed number of rows


def is_module(model: object) -> bool:
    """Whether it is a module of PyTorch. Does not import torch."""
    return any(k.__module__ == "torch.nn.modules.module" for k in type(model).__mro__)


def read_program_decoder(
    program: ExportedProgram | Module | str | Path,
    length: int | None = None,
    *,
    step: int = STEP,
    converters: Mapping[Any, Any] | None = None,
) -> Function:
    """The graph of a decoder whose steps read up to `step` tokens (graph/static_cache.py). length:
    the rows of the cache of a module; a program has its own. Raises DecodeError, ImporterError."""
    where = str(program) if isinstance(program, (str, Path)) else "the program"
    if is_module(program):
        program = exported(program, length or LENGTH, step)
    read = read_program(program, converters or {})
    name = Path(where).stem if isinstance(program, (str, Path)) else "decoder"
    function = decoder_of_program(read, where, length, step=step, converters=converters)
    return replace(function, name=name)


def decoder_of_program(
    read: ExportedProgram,
    where: str,
    length: int | None = None,
    others: Mapping[str, int] = MappingProxyType({}),
    *,
    step: int = STEP,
    converters: Mapping[Any, Any] | None = None,
) -> Function:
    """As read_program_decoder, for a program that may have other inputs. others: their names, with
    the bounds of their dynamic dimensions."""
    shapes = shapes_of(read)
    unknown = [name for name in shapes if name not in (IDS, PLACES, *others)]
    if unknown or len(shapes.get(IDS, ())) != 2 or len(shapes.get(PLACES, ())) != 1:
        raise DecodeError(
            f"this program is not a text decoder: its inputs are {', '.join(shapes) or 'none'}",
            where=where,
            mend=f"a module of {IDS} [1, tokens] and {PLACES} [tokens] whose cache is in buffers,"
            " such as transformers' TorchExportableModuleWithStaticCache",
        )
    own = _rows(read)
    if length is not None and own and length != own:
        raise DecodeError(
            f"the program has a cache of {own} tokens, not {length}",
            where=where,
            mend=f"--max-length {own}, or none; or a program exported with {length}",
        )
    steps = shapes[IDS][1]
    dims = {str(n): f"<={most}" for name, most in others.items() for n in shapes[name]
            if not isinstance(n, int)}  # fmt: skip
    if not isinstance(steps, int):
        dims[str(steps)] = f"<={_most(read, steps, step, own)}"
    function = from_torch(read, dims=dims, converters={**APPENDING, **(converters or {})})
    try:
        return with_static_cache(replace(function, name="decoder"), IDS, PLACES)
    except GraphError as error:
        raise DecodeError(error.what, where=where, mend=error.mend) from error


def exported(module: Any, length: int = LENGTH, step: int = STEP) -> ExportedProgram:
    """The program of a module, whose steps read up to `step` tokens. A language model of
    transformers gets a cache of `length` tokens."""
    import torch

    if hasattr(module, "generation_config"):
        module = _with_cache(module, length)
    count = torch.export.Dim("tokens", min=1, max=min(step, length))
    example = torch.zeros(1, 3, dtype=torch.long), torch.arange(3)
    shapes = {IDS: {1: count}, PLACES: {0: count}}
    with torch.no_grad():
        return torch.export.export(
            module.eval(), (), dict(zip((IDS, PLACES), example, strict=True)),
            dynamic_shapes=shapes, strict=True,
        )  # fmt: skip


def _with_cache(model: Any, length: int) -> Any:
    """A language model of transformers, as a module with its cache in buffers."""
    from transformers.integrations import executorch

    config = model.generation_config
    before = config.use_cache, config.cache_implementation
    config.use_cache, config.cache_implementation = True, OWN
    try:
        return executorch.TorchExportableModuleWithStaticCache(
            model, batch_size=1, max_cache_len=length
        )
    finally:
        config.use_cache, config.cache_implementation = before


def _rows(program: ExportedProgram) -> int:
    """The rows of the caches that the program writes; 0 without any."""
    written = [n.args[0].meta["val"].shape for n in calls_of(program.graph_module)
               if operator_key(n.target) in WRITES]  # fmt: skip
    return min((int(shape[2]) for shape in written if len(shape) == 4), default=0)


def _most(program: ExportedProgram, steps: Any, step: int, length: int) -> int:
    """The most tokens that one step reads."""
    limits = program.range_constraints.get(steps)
    longest = [step] if limits is None else [step, limits.upper]
    return int(min([*longest, length] if length else longest))


def _append(n: TorchNode, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Appends consecutive rows to a cache [1, H, L, D]; with_static_cache proves that they are."""
    batch, heads, length, width = shape_of(x)
    if not is_const(batch, 1) or dim not in (2, -2):
        raise n.refuse("rows are written along other dimensions than those of a cache [1, H, L, D]")
    first = n.cast(reshape(n, rows(n, index, 0, 1), ()), "int64")
    flat = reshape(n, x, (heads, length, width))
    own = reshape(n, source, (heads, shape_of(source)[2], width))
    after = n.emit("append_rows", flat, own, first, owned=False)
    return reshape(n, after, (batch, heads, length, width))


APPENDING = {"aten.index_copy": _append}
