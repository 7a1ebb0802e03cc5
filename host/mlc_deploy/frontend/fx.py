"""Graphs of torch.fx to our graphs, by torch.export and by converters of the user's.

    GraphModule --each call with a converter becomes an operator of its own-->
    GraphModule --torch.export--> program --torch.py--> graph

The key of a converter is a type of module, a function, or a method of torch.Tensor:

    def linear(node, x):                        # a FxNode, and the call's tensors
        weight = node.constant(node.module.weight.detach().numpy(), "float32")
        return node.emit("dense", x, weight, transpose_b=True)

    mlc.compile(traced, "aarch64", shapes={"x": (1, 784)}, converters={torch.nn.Linear: linear})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ImporterError, ShapeError
from ..graph.nodes import Function
from .refusals import first_line, refuse_unknown_inputs
from .torch import from_torch
from .torch_node import Converter, TorchNode
from .torch_program import operator_key

if TYPE_CHECKING:
    from torch.fx import GraphModule

WHERE = "the fx graph"


class FxNode:
    """A call of a module or a function, as its converter sees it.

    `module` is the torch.nn.Module, None for functions. `args` and `kwargs` are the call's
    arguments, with graph values in the place of tensors. All else is a TorchNode's.
    """

    def __init__(
        self, node: TorchNode, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._node = node
        self.module = module
        self.args, self.kwargs = tuple(args), dict(kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def from_fx(
    module: GraphModule,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    converters: Mapping[Any, Converter] | None = None,
) -> Function:
    """The graph of a traced module, not optimized. Weights are views of the module's own.

    shapes gives the shapes of inputs that the trace does not know, by name. Inputs are float32
    unless the trace knows better. The keys of converters are types of modules, functions, or names
    as from_torch has them. Raises ImporterError.
    """
    given = dict(converters or {})
    named = {key: c for key, c in given.items() if isinstance(key, str)}
    own = {key: c for key, c in given.items() if not isinstance(key, str)}
    examples = _examples(module, shapes or {})
    if own:
        module, more = _replaced(module, examples, own)
        named |= more
    import torch

    try:
        with torch.no_grad():
            program = torch.export.export(module, examples)
    except Exception as error:  # any: the module's own code runs
        raise ImporterError(
            f"torch.export cannot take the graph: {first_line(error)}",
            where=WHERE,
            mend="converters={type or function: convert} for what it cannot, or shapes that fit",
        ) from error
    return from_torch(program, converters=named)


def _examples(module: GraphModule, shapes: Mapping[str, Sequence[int]]) -> tuple[Any, ...]:
    """A tensor for each input. Raises ShapeError for unknown shapes and for unknown inputs."""
    import torch

    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    refuse_unknown_inputs(shapes, [node.name for node in inputs], "graph", WHERE)
    found = []
    for node in inputs:
        known = node.meta.get("val", node.meta.get("tensor_meta"))
        shape = shapes.get(node.name, getattr(known, "shape", None))
        if shape is None:
            raise ShapeError(
                f"the shape of input '{node.name}' is not known: the traced graph has none",
                where=WHERE,
                mend=f'shapes={{"{node.name}": (1, 3, 224, 224)}}',
            )
        dtype = getattr(known, "dtype", torch.float32)
        found.append(torch.zeros(tuple(int(n) for n in shape), dtype=dtype))
    return tuple(found)


def _replaced(
    module: GraphModule, examples: tuple[Any, ...], own: Mapping[Any, Converter]
) -> tuple[GraphModule, dict[str, Converter]]:
    """The module with an operator of its own for each node that has a converter, and the converters
    by the names of these operators."""
    import torch
    from torch.fx import GraphModule
    from torch.fx.passes.shape_prop import ShapeProp

    with torch.no_grad():
        ShapeProp(module).propagate(*examples)
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    table: dict[str, Converter] = {}
    for node in module.graph.nodes:
        convert, inner = _converter(module, node, own)
        if convert is None:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            continue
        meta = node.meta.get("tensor_meta")
        if not hasattr(meta, "shape"):
            raise ImporterError(
                "a converter stands for what gives one tensor, and this gives several",
                where=f"{WHERE}, '{node.name}'",
            )
        tensors = list(node.all_input_nodes)
        operator = _operator(node.name, len(tensors), tuple(meta.shape), meta.dtype)
        table[operator_key(operator)] = _call(convert, inner, node)
        copies[node] = graph.call_function(operator, tuple(copies[n] for n in tensors))
    return GraphModule(module, graph), table


def _converter(
    module: GraphModule, node: Any, own: Mapping[Any, Converter]
) -> tuple[Converter | None, Any]:
    """The converter for a node, and the module that the node calls."""
    import torch

    match node.op:
        case "call_module":
            inner = module.get_submodule(node.target)
            kinds = [kind for kind in type(inner).__mro__ if kind in own]
            return (own[kinds[0]] if kinds else None), inner
        case "call_function":
            return own.get(node.target), None
        case "call_method":
            return own.get(getattr(torch.Tensor, node.target, None)), None
    return None, None


@cache  # torch keeps operators as long as the process lives
def _operator(of: str, count: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An operator of `count` tensors whose result has this shape. torch.export keeps it as it is.
    Its name begins with the node's."""
    import torch

    kind = str(dtype).removeprefix("torch.")
    name = "_".join([of, str(count), "x".join(map(str, shape)), kind])
    params = ", ".join(f"Tensor a{n}" for n in range(count))

    def empty(*args: Any) -> Any:
        return args[0].new_empty(shape, dtype=dtype)

    made = torch.library.custom_op(
        f"mlc_fx::{name}", empty, mutates_args=(), schema=f"({params}) -> Tensor"
    )
    made.register_fake(empty)
    return getattr(torch.ops.mlc_fx, name).default


def _call(convert: Converter, inner: Any, node: Any) -> Converter:
    def converted(own: TorchNode, *tensors: Any) -> Any:
        values = dict(zip(node.all_input_nodes, tensors, strict=True))

        def operand(arg: Any) -> Any:
            match arg:
                case list() | tuple():
                    return [operand(a) for a in arg]
            return values.get(arg, arg) if hasattr(arg, "op") else arg

        args = [operand(a) for a in node.args]
        kwargs = {key: operand(a) for key, a in node.kwargs.items()}
        return convert(FxNode(own, inner, args, kwargs), *tensors)

    return converted
