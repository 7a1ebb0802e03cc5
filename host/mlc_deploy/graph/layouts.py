"""The choice of plans: every operator gets its cheapest plan for the target, and values get the
layouts of these plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from mlc_targets import Target

from ..ir import is_const, same_dim, same_shape
from ..ir.names import Names
from ..ops import Array, Attrs, frozen_attrs, has, infer_types, operator
from ..ops.layout import layout, pack
from ..ops.plan import WEIGHTS, Packing, Plan, known_of_weights
from ..ops.shape import has_border, pixels_apart
from ..ops.strategy import plans
from ..passes.context import MEMORY, Growth, PassContext, declare_switch, option, required
from .nodes import AnyCall, Binding, Call, Constant, Deferred, Function, Value, Var
from .weight_growth import offer, taken, weights_of

Pass = Callable[[Function], Function]
PLAIN = "NCHW"
LARGE = 1 << 16  # weights of this many bytes are laid out only when written, one at a time


@required
def choose_plans(target: Target) -> Pass:
    """conv2d(x, w)   =>   conv2d(layout_transform(x), packed w, data_layout="NCHW4c", plan)

    Constant weights are laid out here. Other weights stay as they are: packing them would cost a
    pass over them in every run. Convolutions ask for blocks of channels. Readers of blocks compute
    in blocks if they can, and all other calls get plain data. The dtype decides the size of blocks;
    a call that asks for none takes the size of its arguments. A value is transformed at most once
    to each layout, before its first reader in this layout. The option graph.memory limits the
    growth of all weights together by their layouts (weight_growth.py). The option graph.layouts
    sets layers by name: those in "NCHW" stay plain.
    Without `choose_layouts` all data stay plain, and without `pack_weights` all weights.
    """

    def choose_plans(function: Function) -> Function:
        return _Choice(function, target).rewritten()

    return choose_plans


for switch in ("choose_layouts", "pack_weights", "choose_winograd"):
    declare_switch(switch, level=2)


class _Choice:
    """The state of the pass: the bindings made so far, and the layouts available of each value."""

    def __init__(self, function: Function, target: Target) -> None:
        context = PassContext.current()
        self.function = function
        self.target = target
        self.in_layouts = context.runs("choose_layouts")
        self.packs = context.runs("pack_weights")
        self.asked: Mapping[str, str] = option("graph.layouts")
        self.bindings: list[Binding] = []
        self.plain: dict[Value, Value] = {p: p for p in function.params}
        self.blocks: dict[Value, dict[int, Value]] = {}  # by the size of the blocks
        self.names = Names(p.name for p in function.params)
        self.source = ""
        self.limited: dict[int, Plan | None] = {}  # by call: a plan instead of the larger one

    def rewritten(self) -> Function:
        self._limit(MEMORY[option("graph.memory")])
        for binding in self.function.bindings:
            self.source = binding.source
            if not self._in_blocks(binding):
                self._in_plain_layout(binding)
        if not self.blocks and [*map(planned, self.bindings)] == [
            *map(planned, self.function.bindings)
        ]:
            return self.function
        self.source = ""
        outputs = tuple(map(self.in_plain, self.function.outputs))
        return replace(self.function, bindings=tuple(self.bindings), outputs=outputs)

    def _limit(self, growth: Growth) -> None:
        """Chooses among plans that grow their weights, so that all weights together grow no further
        than they may."""
        most = growth.most(weights_of(self.function))
        if most == inf:
            return
        best: dict[int, Plan] = {}  # by call
        for binding in self.function.bindings:
            self.source = binding.source
            plan = next(self._plans(binding.call), None)
            if plan is not None and plan.saved:
                best[id(binding.call)] = plan
        if sum(offer(plan).bytes for plan in best.values()) <= most:
            return
        layers = [[*plan.lighter(), plan] for plan in best.values()]
        chosen = taken([[offer(plan) for plan in own] for own in layers], most)
        for call, own, number in zip(best, layers, chosen, strict=True):
            self.limited[call] = None if number is None else own[number]

    def _in_plain_layout(self, binding: Binding) -> None:
        """Emits the binding's call on plain data, with packed weights if its plan wants them."""
        call = binding.call
        if isinstance(call, Call) and call.op == "depth_to_space":
            self._pixels_in_plain(binding.outputs[0], call)
            return
        args = tuple(map(self.in_plain, call.args))
        outputs = tuple(Var(self.names.fresh(v.name), v.type) for v in binding.outputs)
        self.plain.update(zip(binding.outputs, outputs, strict=True))
        plan = next((p for p in self._plans(call) if not p.data and not p.result), None)
        if plan is not None and isinstance(call, Call):
            made = _planned(plan, args)
            self.bindings.append(Binding(outputs, made, binding.source))
        else:
            self.bindings.append(Binding(outputs, replace(call, args=args), binding.source))

    def _pixels_in_plain(self, out: Var, call: Call) -> None:
        """depth_to_space as a transpose, which moves rows of pixels."""
        x = self.in_plain(call.args[0])
        shape, axes = pixels_apart(x.type.shape, call.attrs["block"])
        parts = self.emit("reshape", (x,), {"shape": shape}, out.name)
        mixed = self.emit("transpose", (parts,), {"axes": axes}, out.name)
        self.plain[out] = self.emit("reshape", (mixed,), {"shape": out.type.shape}, out.name)

    def _plans(self, call: AnyCall) -> Iterator[Plan]:
        """The possible plans of the call, best first."""
        if not isinstance(call, Call) or call.plan is not None:
            return
        weights = call.args[WEIGHTS : WEIGHTS + 1]
        packs, attrs = False, dict(call.attrs)
        if weights and isinstance(weights[0], Constant):
            packs = True
            if weights[0].type.dtype == "int8":
                attrs |= known_of_weights(weights[0].value)
        for best in plans(call.op, [a.type for a in call.args], attrs, self.target):
            plan = self.limited.get(id(call), best) if best.saved else best
            if plan is None:
                continue
            in_blocks = bool(plan.data or plan.result)
            if plan.packing is not None and not (packs and (in_blocks or self.packs)):
                continue
            beside = call.args[WEIGHTS + 1 :] if plan.beside is not None else ()
            if not all(isinstance(a, Constant) for a in beside):
                continue
            if plan.op != call.op and self.source in self.asked:
                continue  # a layer with a layout set by name keeps its operator
            if not in_blocks or self.in_layouts:
                yield plan

    def _in_blocks(self, binding: Binding) -> bool:
        """Emits the binding's call in blocks if this is possible and worth it; returns whether."""
        call = binding.call
        if not isinstance(call, Call) or len(binding.outputs) != 1 or not self.in_layouts:
            return False
        (out,) = binding.outputs
        if call.op == "reshape" and call.args[0] in self.blocks:
            return self._reshape(out, call)
        asked = self.asked.get(self.source, "")
        plan = next(self._plans(call), None)
        if plan is not None and plan.packing is not None and plan.result:
            return asked != PLAIN and self._layer(out, call, plan)
        block = next((self._block(a) for a in call.args if a in self.blocks), 0)
        if not block:
            return False  # this call alone is not worth a transform
        if plan is not None and plan.result:
            args = (self.in_blocks(call.args[0], _tile(plan.data)), *call.args[1:])
            self._emit_call(out, Call(plan.op, args, plan.attrs, plan), _tile(plan.result))
            return True
        if has(call.op, "reduces"):
            return self._reduction(out, call, block)
        if not _divides(out, block):
            return False
        if call.op == "lookup":
            return self._lookup(out, call, block)
        if has(call.op, "along"):
            return self._along(out, call, block)
        if operator(call.op).pattern == "elementwise":
            return self._elementwise(out, call, block)
        attrs = _moves(call, block)
        if attrs is None or not all(_divides(a, block) for a in call.args):
            return False
        args = tuple(self.in_blocks(a, block) for a in call.args)
        self.blocks[out] = {block: self.emit(call.op, args, attrs, out.name)}
        return True

    # ------------------------------------------------------------------------------ operators

    def _layer(self, out: Var, call: Call, plan: Plan) -> bool:
        block = _tile(plan.data) if plan.data else 0
        data = self.in_blocks(call.args[0], block) if block else self.in_plain(call.args[0])
        args = (data, *call.args[1:])
        self._emit_call(out, _planned(plan, args), _tile(plan.result))
        return True

    def _emit_call(self, out: Var, call: Call, block: int) -> None:
        (type_,) = infer_types(call.op, [a.type for a in call.args], call.attrs)
        made = Var(self.names.fresh(out.name), type_)
        self.bindings.append(Binding((made,), call, self.source))
        self.blocks[out] = {block: made}

    def _elementwise(self, out: Var, call: Call, block: int) -> bool:
        """Operands that broadcast do so in blocks, too: they get a 1 for the inner dimension."""
        if not all(self._broadcasts(a, out) for a in call.args):
            return False
        args = tuple(self._broadcast(a, block) for a in call.args)
        self.blocks[out] = {block: self.emit(call.op, args, call.attrs, out.name)}
        return True

    def _broadcasts(self, value: Value, out: Var) -> bool:
        shape = value.type.shape
        if isinstance(value, Constant) or len(shape) == len(PLAIN):
            return len(shape) < len(PLAIN) - 1 or (
                is_const(shape[-3], 1) or same_dim(shape[-3], out.type.shape[1])
            )
        return False

    def _broadcast(self, value: Value, block: int) -> Value:
        shape = value.type.shape
        if isinstance(value, Constant):
            if value.value.size == 1:
                return value
            whole = value.value.reshape((1,) * (len(PLAIN) - len(shape)) + value.value.shape)
            if whole.shape[1] == 1:
                return Constant(whole[..., None], value.name)
            return Constant(pack(whole, PLAIN, _blocked(block)), value.name)
        if is_const(shape[1], 1):
            return self.emit("reshape", (self.in_plain(value),), {"shape": (*shape, 1)}, "wider")
        return self.in_blocks(value, block)

    def _lookup(self, out: Var, call: Call, block: int) -> bool:
        """A lookup of each element in one shared table works in blocks as it is."""
        x, table = call.args
        args = self.in_blocks(x, block), table
        self.blocks[out] = {block: self.emit("lookup", args, call.attrs, out.name)}
        return True

    def _along(self, out: Var, call: Call, block: int) -> bool:
        """An operator along height or width, in blocks."""
        x, *how = call.args
        axis = call.attrs["axis"] % len(x.type.shape)
        if axis not in (2, 3) or not _divides(x, block):
            return False
        args = (self.in_blocks(x, block), *map(self.in_plain, how))
        self.blocks[out] = {block: self.emit(call.op, args, {**call.attrs, "axis": axis}, out.name)}
        return True

    def _reduction(self, out: Var, call: Call, block: int) -> bool:
        """A reduction over height, width or both, in blocks."""
        rank = len(call.args[0].type.shape)
        axes = tuple(sorted(axis % rank for axis in call.attrs["axes"]))
        keepdims = call.attrs["keepdims"]
        if not axes or not set(axes) <= {2, 3} or not (keepdims or axes == (2, 3)):
            return False
        attrs = {**call.attrs, "axes": axes, "keepdims": True}
        reduced = self.emit(call.op, (self.in_blocks(call.args[0], block),), attrs, out.name)
        if keepdims:
            self.blocks[out] = {block: reduced}
        else:
            self.plain[out] = self.emit(
                "reshape", (reduced,), {"shape": out.type.shape}, f"{out.name}.flat"
            )
        return True

    def _reshape(self, out: Var, call: Call) -> bool:
        """A reshape of one pixel per image: its channels have the same order in blocks."""
        x = call.args[0]
        if x in self.plain or not same_shape(x.type.shape[2:], (1, 1)):
            return False
        blocks = self.blocks[x][self._block(x)]
        self.plain[out] = self.emit("reshape", (blocks,), call.attrs, out.name)
        return True

    # ------------------------------------------------------------------------------ the forms

    def emit(self, op: str, args: Sequence[Value], attrs: Attrs, name: str) -> Var:
        (type_,) = infer_types(op, [a.type for a in args], attrs)
        out = Var(self.names.fresh(name), type_)
        self.bindings.append(
            Binding((out,), Call(op, tuple(args), frozen_attrs(attrs)), self.source)
        )
        return out

    def _block(self, value: Value) -> int:
        """The size of the first blocks made of a value."""
        return next(iter(self.blocks[value]))

    def in_plain(self, value: Value) -> Value:
        if isinstance(value, Constant):
            return value
        if value not in self.plain:
            block, name = self._block(value), f"{value.name}.plain"
            self.plain[value] = self._transformed(
                self.blocks[value][block], value, _blocked(block), PLAIN, name
            )
        return self.plain[value]

    def in_blocks(self, value: Value, block: int) -> Value:
        if isinstance(value, Constant):
            return Constant(pack(value.value, PLAIN, _blocked(block)), value.name)
        forms = self.blocks.setdefault(value, {})
        if block not in forms:
            source = PLAIN if value in self.plain else _blocked(self._block(value))
            given = self.plain[value] if source == PLAIN else forms[self._block(value)]
            name = f"{value.name}.blocks"
            forms[block] = self._transformed(given, value, source, _blocked(block), name)
        return forms[block]

    def _transformed(self, given: Value, value: Value, source: str, to: str, name: str) -> Value:
        """`given`, which is `value` in the layout `source`, transformed to the layout `to`."""
        if to == PLAIN and same_shape(value.type.shape[2:], (1, 1)):
            return self.emit("reshape", (given,), {"shape": value.type.shape}, name)
        return self.emit("layout_transform", (given,), {"source": source, "to": to}, name)


def _blocked(block: int) -> str:
    return f"{PLAIN}{block}c"


def _tile(text: str) -> int:
    """The number of channels in a block of a layout; 0 for a plain one."""
    return layout(text).tiles.get("C", (0,))[0]


def _divides(value: Value, block: int) -> bool:
    """Whether the value's shape may be NCHW, with channels that divide into blocks."""
    shape = value.type.shape
    blocks = len(shape) == len(PLAIN) and isinstance(shape[1], int) and shape[1] % block == 0
    return blocks


def _moves(call: Call, lanes: int) -> Attrs | None:
    """The attributes, in blocks, of an operator that only moves elements; None if it would split
    blocks, or is another operator."""
    attrs = call.attrs
    match call.op:
        case "concatenate":
            return {"axis": attrs["axis"] % len(PLAIN)}
        case "depth_to_space":
            return attrs
        case "repeat":
            axis = attrs["axis"] % len(PLAIN)
            return {**attrs, "axis": axis} if axis > 1 else None
        case "slice":
            begin, step, shape = (list(attrs[key]) for key in ("begin", "step", "shape"))
            if begin[1] % lanes or step[1] != 1:
                return None
            begin[1], shape[1] = begin[1] // lanes, shape[1] // lanes
            return {"begin": (*begin, 0), "step": (*step, 1), "shape": (*shape, lanes)}
        case "pad":
            pads = list(attrs["pads"])
            if has_border((pads[1], pads[5])):
                return None
            return {**attrs, "pads": (*pads[:4], 0, *pads[4:], 0)}
    return None


def planned(binding: Binding) -> bool:
    """Whether the binding's call has a plan."""
    return isinstance(binding.call, Call) and binding.call.plan is not None


def _planned(plan: Plan, args: tuple[Value, ...]) -> Call:
    """The call of a plan. Its packed arguments are constants."""
    if plan.packing is not None:
        last = len(args) if plan.beside is not None else WEIGHTS + 1
        given = [a for a in args[WEIGHTS:last] if isinstance(a, Constant)]
        assert len(given) == last - WEIGHTS
        packings = (plan.packing, *([plan.beside] * (len(given) - 1)))
        args = (*args[:WEIGHTS], *map(_packed, packings, given), *args[last:])
    return Call(plan.op, args, plan.attrs, plan)


def _packed(packing: Packing | None, given: Constant) -> Constant:
    assert packing is not None
    if given.type.bytes < LARGE:
        return Constant(packing(given.value), given.name)
    packed = Deferred(packing.type(given.type), _laid_out, (packing, given))
    return Constant(packed, given.name)


def _laid_out(packing: Packing, given: Constant) -> Array:
    return packing(given.value)
