"""Primitives on layouts: a buffer's (transform_layout), a block's (transform_block_layout)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..arith import Bounds, expr_bounds, simplify_expr
from ..ir import (
    Block,
    Const,
    Expr,
    IterVar,
    Load,
    PrimFunc,
    Region,
    Stmt,
    Store,
    Var,
    const,
    expr,
    is_const,
    load,
    once,
    rebuild,
    substitute,
    with_fields,
)
from ..ir.build import binary, loop_nest
from ..ir.interp import evaluate_grid
from ..ir.names import names_of
from ..ir.printer import script
from .loops import require_free_order
from .tree import (
    block_at,
    blocks_in,
    find_leaf,
    is_leaf,
    loops_of,
    refreshed,
    refuse,
    replace,
    require_leaf,
    vars_in,
)

IndexMap = Callable[..., Any]
MOST_CHECKED = 1 << 22  # elements whose places are compared
MIN_MAX = {"min": partial(binary, "min"), "max": partial(binary, "max")}


def as_map(
    index_map: IndexMap | str, ndim: int, primitive: str, at: Stmt | None = None
) -> tuple[list[Var], list[Expr]]:
    """The variables and results of an index map, a Python function or the text of one."""
    function = _from_text(index_map, primitive, at) if isinstance(index_map, str) else index_map
    parameters = inspect.signature(function).parameters.values()
    free = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    if not free and len(parameters) != ndim:
        refuse(primitive, f"the index map takes {len(parameters)} indices, {ndim} are given", at)
    variables = [Var(f"i{n}") for n in range(ndim)]
    given = function(*variables)
    results = [expr(e) for e in (given if isinstance(given, (list, tuple)) else (given,))]
    return variables, results


def _from_text(text: str, primitive: str, at: Stmt | None) -> IndexMap:
    """`lambda i0, i1: [i0 // 8, i1, i0 % 8]`: names, integers, + - * // % and min/max only."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        code = compile(tree, "index map", "eval") if _is_map(tree.body) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deep texts
        code = None
    if code is None:
        refuse(
            primitive,
            f"'{text:.200}' is not an index map",
            at,
            "a text like 'lambda i: [i // 4, i % 4]'",
        )
    made: IndexMap = eval(code, {"__builtins__": {}, **MIN_MAX, "T": SimpleNamespace(**MIN_MAX)})
    return made


def _is_map(e: ast.expr) -> bool:
    match e:
        case ast.Lambda(ast.arguments([], parameters, None, [], [], None, []), body):
            names = {p.arg for p in parameters}
            results = body.elts if isinstance(body, (ast.List, ast.Tuple)) else [body]
            return names.isdisjoint({"T", *MIN_MAX}) and all(_is_index(r, names) for r in results)
    return False


def _is_index(e: ast.expr, names: Collection[str]) -> bool:
    match e:
        case ast.Constant(value) | ast.UnaryOp(ast.USub(), ast.Constant(value)):
            return type(value) is int
        case ast.Name(name):
            return name in names
        case ast.BinOp(a, ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), b):
            return _is_index(a, names) and _is_index(b, names)
        case ast.Call(
            ast.Name("min" | "max") | ast.Attribute(ast.Name("T"), "min" | "max"), [a, b], []
        ):  # T.min is how scripts have it
            return _is_index(a, names) and _is_index(b, names)
    return False


def map_text(index_map: IndexMap | str, ndim: int) -> str:
    """An index map as text that `as_map` reads."""
    if isinstance(index_map, str):
        return index_map
    variables, results = as_map(index_map, ndim, "index map")
    names = ", ".join(v.name for v in variables)
    return f"lambda {names}: [{', '.join(script(e) for e in results)}]"


def transform_layout(
    func: PrimFunc, block: str, buffer: str, index_map: IndexMap | str
) -> PrimFunc:
    """B[i, j]   =>   B[map(i, j)], everywhere; the buffer's shape becomes the map's range.

    `buffer` names one that the block reads or writes. A parameter's shape changes for the caller
    too. Raises ScheduleError for a map that sends two elements to one place.
    """
    primitive = "transform_layout"
    target = block_at(find_leaf(func, block, primitive))
    touched = {r.buffer.name: r.buffer for r in (*target.writes, *target.reads)}
    if buffer not in touched:
        refuse(
            primitive,
            f"block '{block}' does not touch a buffer '{buffer}'",
            target,
            f"one of {', '.join(touched)}",
        )
    old = touched[buffer]
    for user in blocks_in(func.body):
        if any(r.buffer is old for r in (*user.reads, *user.writes)):
            require_leaf(primitive, user)
    variables, results = as_map(index_map, old.ndim, primitive, target)
    shape = _image(primitive, old.shape, variables, results, f"buffer '{buffer}'", target)
    packed = old.replace(shape=shape, strides=None)

    def mapped(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        values = dict(zip(variables, indices, strict=True))
        return tuple(substitute(e, values) for e in results)

    @once
    def visit(m: Any) -> Any:
        match m:
            case Load(b, indices) if b is old:
                return load(packed, mapped(tuple(visit(i) for i in indices)))
            case Store(b, indices, value) if b is old:
                return Store(packed, mapped(tuple(visit(i) for i in indices)), visit(value))
            case Region(b) if b is old:
                whole = tuple(expr(n) for n in packed.shape)
                return Region(packed, tuple(const(0) for _ in whole), whole)
            case Block():
                inside = rebuild(m, visit)
                allocs = tuple(packed if b is old else b for b in m.allocs)
                inside = with_fields(inside, allocs=allocs)
                return refreshed(inside) if m.iters and is_leaf(m) else inside
        return rebuild(m, visit)

    params = tuple(packed if p is old else p for p in func.params)
    return with_fields(func, params=params, body=visit(func.body))


def _image(
    primitive: str,
    shape: Sequence[Any],
    variables: Sequence[Var],
    results: Sequence[Expr],
    what: str,
    at: Stmt,
) -> tuple[int, ...]:
    """The shape that holds the map's results; refuses maps that are not one to one."""
    if not all(isinstance(n, int) for n in shape):
        refuse(primitive, f"{what} has a symbolic shape", at)
    if not shape or not results:
        refuse(primitive, f"{what} or its index map has no dimensions", at)
    ranges: dict[Var, Bounds] = {v: (0, n - 1) for v, n in zip(variables, shape, strict=True)}
    bounds = [expr_bounds(e, ranges) for e in results]
    if any(low is None or high is None or low < 0 for low, high in bounds):
        refuse(primitive, f"the index map of {what} gives indices below 0 or without bound", at)
    image = tuple(int(high or 0) + 1 for _, high in bounds)
    total = int(np.prod(shape, dtype=np.int64))
    if total > MOST_CHECKED:
        refuse(primitive, f"{what} has {total} elements, too many to check the index map on", at)
    places = evaluate_grid(variables, shape, results)
    if len(np.unique(np.ravel_multi_index(places, image))) != total:
        refuse(primitive, f"the index map of {what} sends two elements to one place", at)
    return image


def transform_block_layout(func: PrimFunc, block: str, index_map: IndexMap | str) -> PrimFunc:
    """for i, j: block(v_i = i, v_j = j)   =>   for map(i, j): the same block, in that order.

    The block's loops must be its own, one per iteration, with nothing else in them; the map must be
    one to one and onto the box of its results.
    """
    primitive = "transform_block_layout"
    path = find_leaf(func, block, primitive)
    target = block_at(path)
    loops = loops_of(path)
    nest = loops[-len(target.iters) :]
    plain = 0 < len(nest) == len(target.iters) and all(
        i.binding is loop.var and loop.body is below
        for i, loop, below in zip(target.iters, nest, [*nest[1:], target], strict=True)
    )
    if not plain or not is_const(target.predicate, True):
        refuse(primitive, f"block '{block}' is not alone in loops that are its iterations", target)
    require_free_order(primitive, func, target)
    if any(loop.kind != "serial" for loop in nest):
        refuse(primitive, f"a loop around block '{block}' is not serial", target)
    shape = [int(i.extent) if isinstance(i.extent, Const) else i.extent for i in target.iters]
    variables, results = as_map(index_map, len(nest), primitive, target)
    image = _image(primitive, shape, variables, results, f"block '{block}'", target)
    if int(np.prod(image)) != int(np.prod(shape)):  # type: ignore[arg-type]
        refuse(primitive, f"the index map of block '{block}' leaves holes in {image}", target)
    kinds = [_kind_of(primitive, target, variables, e) for e in results]
    names = names_of(func)
    fresh = [Var(names.fresh(f"ax{n}")) for n in range(len(image))]
    inside = [Var(names.fresh(f"v_ax{n}")) for n in range(len(image))]
    inverse = _inverse(primitive, target, variables, shape, results, inside, image)
    values = dict(zip((i.var for i in target.iters), inverse, strict=True))
    moved = substitute(with_fields(target, iters=()), values)
    iters = tuple(
        IterVar(v, const(n), kind, loop)
        for v, n, kind, loop in zip(inside, image, kinds, fresh, strict=True)
    )
    body: Stmt = refreshed(with_fields(moved, iters=iters))
    nested = loop_nest([(v, const(n)) for v, n in zip(fresh, image, strict=True)], body)
    return replace(func, nest[0], nested)


def _kind_of(primitive: str, block: Block, variables: Sequence[Var], result: Expr) -> Any:
    kinds = {
        i.kind for i, v in zip(block.iters, variables, strict=True) if v in vars_in(result)
    } or {"spatial"}
    if len(kinds) > 1:
        refuse(primitive, f"'{result}' mixes spatial and reduce iterations", block)
    return kinds.pop()


def _inverse(
    primitive: str,
    block: Block,
    variables: Sequence[Var],
    shape: Sequence[Any],
    results: Sequence[Expr],
    inside: Sequence[Var],
    image: Sequence[int],
) -> list[Expr]:
    """Each old iteration in terms of the results: a linear combination of the results is fitted to
    the map's values, and checked on the whole domain."""
    places = np.stack(evaluate_grid(variables, shape, results)).reshape(len(results), -1)
    grid = np.indices(shape).reshape(len(shape), -1)
    ranges: dict[Var, Bounds] = {v: (0, n - 1) for v, n in zip(inside, image, strict=True)}
    inverse: list[Expr] = []
    for old, extent in zip(grid, shape, strict=True):
        solved, *_ = np.linalg.lstsq(places.T.astype(float), old.astype(float), rcond=None)
        coefficients = np.rint(solved).astype(int)
        if not np.array_equal(coefficients @ places, old):
            candidate = _fused_inverse(places, old, extent, inside, image)
            if candidate is None:
                refuse(
                    primitive, f"the index map of block '{block.name}' cannot be inverted", block
                )
            inverse.append(candidate)
            continue
        total: Expr = const(0)
        for v, c in zip(inside, coefficients, strict=True):
            total = total + v * int(c)
        inverse.append(simplify_expr(total, ranges))
    return inverse


def _fused_inverse(
    places: Any, old: Any, extent: int, inside: Sequence[Var], image: Sequence[int]
) -> Expr | None:
    """old = result // a % extent, as a fused index comes apart."""
    for v, row, size in zip(inside, places, image, strict=True):
        for below in range(1, size + 1):
            if size % below == 0 and np.array_equal(row // below % extent, old):
                return v // below % extent
    return None
