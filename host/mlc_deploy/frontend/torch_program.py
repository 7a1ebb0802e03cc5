"""The conversion of a torch.export program: its inputs, its calls in order, its outputs and states.

A buffer or input that the module writes to is a state: an input, and an output that is its value in
the next run (graph/states.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImporterError
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Function, Value, Var
from ..graph.states import with_states
from ..graph.verify import verify
from ..ir import Dim, Expr
from ..ir.names import Names
from .ends import finished
from .extents import Extents, larger, product, simplified, smaller
from .node import shape_of
from .refusals import mistakes_at
from .torch_complex import Complex, converted
from .torch_dims import Dims, expression
from .torch_node import Converter, TorchNode, dtype_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

BEGUN = "begun"  # the state that says whether there was a run before


def operator_key(target: Any) -> str:
    """ "namespace.name" of an operator, or the name of a Python function."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    namespace = getattr(target, "namespace", None)
    name = getattr(target, "__name__", str(target))
    return f"{namespace}.{name}" if namespace else name


def calls_of(module: GraphModule) -> Iterator[Node]:
    """The calls of a graph, and of those of the loops and branches in it."""
    for inner in module.modules():
        for node in inner.graph.nodes if hasattr(inner, "graph") else ():
            if node.op == "call_function":
                yield node


def is_python(target: Any) -> bool:
    """Whether a function computes with sizes and numbers, not with tensors."""
    module = str(getattr(target, "__module__", ""))
    name = getattr(target, "__name__", "")
    return (
        module in ("_operator", "operator", "math", "builtins")
        or operator_key(target) in SIZES
        or (module.startswith("torch") and name.startswith("sym_"))
    )


SIZES: Mapping[str, Callable[..., Any]] = {
    "aten.sym_size": lambda x, axis: shape_of(x)[axis],
    "aten.sym_numel": lambda x: product(shape_of(x)),
    "aten.sym_stride": lambda x, axis: product(shape_of(x)[axis:][1:]),
}

# Python's and torch's functions on dynamic extents. Only assertions compare extents, so
# comparisons are true.
OF_EXTENTS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
    "sym_max": larger,
    "sym_min": smaller,
    "max": larger,
    "min": smaller,
    "sym_sum": sum,
    "pow": lambda extent, power: product([extent] * power),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and_", "sym_not"), lambda *_: True),
}


def layer_of(node: Node) -> str:
    """The module's path and the call's name, as in "features.0.conv2d"."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).removeprefix("L['self'].").removeprefix("L['self']") if stack else ""
    return f"{path}.{node.name}" if path else node.name


class Conversion:
    """The values of a program's nodes as they become known."""

    def __init__(
        self, program: ExportedProgram, table: Mapping[str, Converter], dims: Dims, where: str
    ) -> None:
        self.program, self.table, self.dims, self.where = program, table, dims, where
        self.builder = BlockBuilder("main")
        self.values: dict[Node, Any] = {}
        inputs = program.graph_signature.user_inputs
        self.extents = Extents([*map(str, inputs), *_output_names(program)])

    def function(self) -> Function:
        module = self.program.graph_module
        stored, written = self._stored(), self._written()
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node in sorted(places, key=lambda node: node.name in stored):  # buffers come last
            self.values[node] = self._input(node, stored, written)
        for name, most in self.dims.opened.values():
            self.extents.given(name, self.builder.param(name, (), "int64"), most)
        begun = self._first_values(written, stored)
        results = self._run(module)
        return self._finish(results, begun)

    def _run(self, module: GraphModule) -> Any:
        """The outputs of a graph whose placeholders have values."""
        for node in module.graph.nodes:
            match node.op:
                case "get_attr":
                    self.values[node] = self._attribute(module, node)
                case "call_function":
                    self.values[node] = self._call(node)
                case "output":
                    return self._operands(node.args[0])
        raise ImporterError("a graph of the program has no output", where=self.where)

    def body(self, module: Any, *given: Any) -> list[Any]:
        """The outputs of an inner graph of the program for these values."""
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        if len(places) != len(given):
            raise ValueError(f"a graph takes {len(places)} values, not {len(given)}")
        self.values.update(zip(places, given, strict=True))
        results = self._run(module)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    # ------------------------------------------------------------------------ inputs and states

    def _stored(self) -> dict[str, Any]:
        """Parameters, buffers and constants by the names of their placeholders."""
        state, constants = self.program.state_dict, self.program.constants
        return {
            spec.arg.name: state[spec.target] if spec.target in state else constants[spec.target]
            for spec in self.program.graph_signature.input_specs
            if spec.target is not None and hasattr(spec.arg, "name")
        }

    def _written(self) -> dict[str, str]:
        """The states: the name of the buffer or input by the name of its placeholder."""
        from torch.export.graph_signature import OutputKind

        specs = self.program.graph_signature.input_specs
        holders = {s.target: s.arg.name for s in specs if s.target is not None}
        states: dict[str, str] = {}
        for spec in self.program.graph_signature.output_specs:
            match spec.kind:
                case OutputKind.USER_OUTPUT | OutputKind.TOKEN:
                    pass
                case OutputKind.BUFFER_MUTATION:
                    states[holders[spec.target]] = str(spec.target)
                case OutputKind.USER_INPUT_MUTATION:
                    states[str(spec.target)] = str(spec.target)
                case _:
                    raise ImporterError(
                        f"the module writes to '{spec.target or spec.arg.name}' when it runs, "
                        "which is neither a buffer nor an input",
                        where=self.where,
                        mend="module.eval() before the export",
                    )
        return states

    def _input(self, node: Node, stored: Mapping[str, Any], written: Mapping[str, str]) -> Any:
        place = f"{self.where}, input '{node.name}'"
        if node.name in stored and node.name not in written:
            return _constant(stored[node.name] if node.users else None, node.name, place)
        if not hasattr(node.meta["val"], "shape"):
            return node.meta["val"]  # a number that was given for the export
        shape = [self.dims.extent(expression(e)) for e in node.meta["val"].shape]
        known = [extent for extent in shape if extent is not None]
        assert len(known) == len(shape)  # torch_dims.bound has refused others
        name = written.get(node.name, node.name)
        return self.builder.param(name, known, dtype_name(node.meta["val"].dtype, place))

    def _first_values(self, written: Mapping[str, str], stored: Mapping[str, Any]) -> Var | None:
        """Adds the first values of states that are not zero at first. A further state, BEGUN, says
        whether there was a run, and chooses between first value and state. Returns BEGUN, or None
        if all states begin at zero."""
        nodes = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        first = {
            nodes[name]: Constant(array, name)
            for name in written
            if name in stored and (array := _array(stored[name], self.where)).any()
        }
        if not first:
            return None
        begun = self.builder.param(BEGUN, (), "bool")
        for node, constant in first.items():
            name = f"{self.values[node].name}_here"
            self.values[node] = self.builder.emit(
                "where", begun, self.values[node], constant, name=name, source=node.name
            )
        return begun

    # ------------------------------------------------------------------------------------ calls

    def _attribute(self, module: GraphModule, node: Node) -> Any:
        found: Any = module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if hasattr(found, "graph"):
            return found
        return _constant(found, node.name, f"{self.where}, '{node.name}'")

    def _call(self, node: Node) -> Any:
        key = operator_key(node.target)
        place = f"{self.where}, '{layer_of(node)}' ({key})"
        with mistakes_at(place, self.extents.params):
            if is_python(node.target):
                return self._computed(key, node)
            n = self._torch_node(node, place)
            result = converted(n, self.table[key], self._arguments(node))
        self._check(node, result, place)
        return result

    def _computed(self, key: str, node: Node) -> Any:
        """The result of a Python function of sizes and numbers."""
        args, options = self._operands(node.args), self._operands(node.kwargs)
        compute = SIZES.get(key, node.target)
        if any(isinstance(a, Expr) for a in _leaves(args)):
            compute = OF_EXTENTS.get(key, compute)
            if compute is math.trunc or key in ("sym_int", "trunc"):
                return args[0]
        found = compute(*args, **options)
        return simplified(found) if isinstance(found, Expr) else found

    def _torch_node(self, node: Node, place: str) -> TorchNode:
        overload = getattr(node.target, "_overloadname", "")
        known = [a.meta.get("val") if hasattr(a, "meta") else a for a in node.args]
        return TorchNode(
            operator_key(node.target), overload, node.name, layer_of(node), place,
            (node.meta.get("val"), known), self.builder, self.extents, self.body,
        )  # fmt: skip

    def _arguments(self, node: Node) -> list[Any]:
        """All arguments in the schema's order, defaults filled in."""
        given = list(node.args)
        arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
        for argument in arguments[len(given) :]:
            given.append(node.kwargs.get(argument.name, argument.default_value))
        operands: list[Any] = self._operands(given)
        return operands

    def _operands(self, arg: Any) -> Any:
        """An argument with nodes replaced by their values."""
        match arg:
            case list() | tuple():
                return [self._operands(a) for a in arg]
            case dict():
                return {key: self._operands(a) for key, a in arg.items()}
        return self.values[arg] if arg in self.values else arg

    def _check(self, node: Node, result: Any, place: str) -> None:
        """Compares a converter's result with torch's type of it, to find mistakes in converters."""
        expected = node.meta.get("val")
        pairs = zip(result, expected, strict=False) if isinstance(result, (list, tuple)) else [
            (result, expected)
        ]  # fmt: skip
        for value, wanted in pairs:
            if isinstance(value, Complex) or not hasattr(wanted, "shape"):
                continue
            if not isinstance(value, Value):
                continue
            own = shape_of(value)
            known = [self.dims.extent(expression(e)) for e in wanted.shape]
            dtype = dtype_name(wanted.dtype, place)
            same = len(own) == len(known) and all(map(_may_be, own, known))
            if not same or value.type.dtype != dtype:
                shape = [n if e is None else e for e, n in zip(known, wanted.shape, strict=True)]
                raise ImporterError(
                    f"the converter returned {value.type}, and torch {dtype}{shape}", where=place
                )

    # ---------------------------------------------------------------------------------- outputs

    def _finish(self, results: Sequence[Any], begun: Var | None) -> Function:
        specs = self.program.graph_signature.output_specs
        own = [(v, s) for v, s in zip(results, specs, strict=True) if s.kind.name != "TOKEN"]
        users = [v for v, s in own if s.kind.name == "USER_OUTPUT"]
        names = _output_names(self.program, len(users))
        kept: list[tuple[Value, str]] = []
        for value, name in zip(users, names, strict=True):
            if isinstance(value, Complex):
                raise ImporterError(
                    f"output '{name}' has complex numbers, which boards do not return",
                    where=self.where,
                    mend="torch.view_as_real",
                )
            if isinstance(value, Value):
                kept.append((value, name))
        states: dict[str, str] = {}
        taken = Names(name for _, name in kept)  # a state finds its output by name
        for value, spec in own:
            if spec.kind.name != "USER_OUTPUT":
                before = str(spec.target)
                states[before] = taken.fresh(f"{before}_next")
                kept.append((value, states[before]))
        if begun is not None:
            states[BEGUN] = taken.fresh(f"{BEGUN}_next")
            kept.append((Constant(np.array(True)), states[BEGUN]))
        function = finished(
            self.builder, self.extents, [v for v, _ in kept], [name for _, name in kept]
        )
        verify(function)
        return with_states(function, states) if states else function


def _may_be(extent: Dim, wanted: Dim | None) -> bool:
    """Whether an extent may equal torch's: they differ only if both are different numbers."""
    return not isinstance(extent, int) or not isinstance(wanted, int) or extent == wanted


def _leaves(args: Any) -> Iterator[Any]:
    if isinstance(args, list):
        for a in args:
            yield from _leaves(a)
    else:
        yield args


def _constant(tensor: Any, name: str, where: str) -> Constant | Complex:
    """A tensor of the program; None is a tensor that nothing reads."""
    if tensor is None:
        return Constant(np.zeros(()), name)
    if tensor.is_complex():
        parts = (Constant(_array(p.contiguous(), where), name) for p in (tensor.real, tensor.imag))
        return Complex(*parts)
    return Constant(_array(tensor, where), name)


def _array(tensor: Any, where: str) -> NDArray[Any]:
    """The tensor as numpy sees it. A tensor on the CPU is not copied."""
    dtype_name(tensor.dtype, where)
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _output_names(program: ExportedProgram, count: int | None = None) -> list[str]:
    """The keys of the dict that the program returns; else "output", numbered if there are
    several."""
    from torch.utils import _pytree

    spec = program.call_spec.out_spec
    if count is None:
        count = spec.num_leaves if spec is not None else 1
    if spec is None or spec.num_leaves != count:
        return [f"output_{n}" for n in range(count)] if count > 1 else ["output"]
    tree = _pytree.tree_unflatten(range(count), spec)
    paths, _ = _pytree.tree_flatten_with_path(tree)
    return ["_".join(["output"] * _numbered(path) + [_step(k) for k in path]) for path, _ in paths]


def _numbered(path: Sequence[Any]) -> bool:
    """Whether a path has no name: it is empty, or begins with a number."""
    return not path or _step(path[0]).isdigit()


def _step(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
