"""Flat loops to portable C11: a source file and its header, for any C compiler.

A kernel becomes two functions, as in LLVM IR: a body whose pointers are restrict, and the entry of
the kernel ABI that unpacks mlc_args for it. The code fixes what C does not define: integers wrap
(they are computed unsigned), division rounds as in the IR, constants are exact, and indices have
pointer width. float16 is stored as its bits and computed in float, rounded after every step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..arith import Bounds, turn_range
from ..arith.value_ranges import shifts
from ..errors import CodegenError
from ..ir import (
    Binary,
    Block,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    Not,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    addressed,
    dtype_of,
    extern_name,
    externs_of,
    is_address,
    walk,
)
from ..ir.names import Names
from ..ir.parts import Parts, is_choice
from ..ir.verify import verify_each
from ..lower import KEPT, Kernel
from ..lower.machine import C_STEPS
from ..passes.context import run_passes
from ..schedule.tensor_intrin import is_llvm
from .c_fixed import ACTIVATIONS, HELPERS, MATH, RESERVED, SOURCE_NOTE, header
from .c_numbers import conversion, division
from .c_text import (
    AND,
    ANY,
    ATOM,
    BITS,
    COMPARE,
    INDEX,
    LEVELS,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    UNARY,
    Text,
    constant,
    identifier,
    indented,
    known,
    memory_type,
    placed,
    value_type,
    wrapped,
)
from .signature import scalars_of, scratch_layout, sharing
from .tasks import TaskRange, task_range, tasks

if TYPE_CHECKING:
    from .library import Library


def c_source(library: Library, header_name: str = "") -> tuple[str, str]:
    """(source, header) of a library's kernels; the source includes the header by `header_name`.

    A kernel keeps its name unless C uses it ("main", "exp"): then a number follows. Raises
    CodegenError for kernels that C cannot express.
    """
    header_name = header_name or f"{identifier(library.name)}.h"
    source, writers = _source(library, header_name)
    prototypes = "\n\n".join("\n".join(writer.prototype()) for writer in writers)
    return source + "\n", header(header_name, prototypes)


def c_kernels(
    library: Library, header_name: str, taken: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """(source of a library's kernels with static functions, each kernel's name in it). Names in
    `taken` are not used. Raises CodegenError."""
    source, writers = _source(library, header_name, taken, "static ")
    return source, {writer.kernel.name: writer.symbol for writer in writers}


def _source(
    library: Library, header_name: str, taken: Sequence[str] = (), linkage: str = ""
) -> tuple[str, Sequence[_Writer]]:
    externs = frozenset[str]().union(*(externs_of(k.body) for k in library.kernels))
    names, helpers = Names((*RESERVED, *externs, *taken)), dict[str, str]()
    writers = [_Writer(kernel, names, helpers, linkage, taken) for kernel in library.kernels]
    functions = ["\n".join(writer.functions()) for writer in writers]
    includes = "#include <math.h>\n#include <stdbool.h>\n#include <stddef.h>"
    parts = [SOURCE_NOTE, f'#include "{header_name}"\n\n{includes}', *helpers.values(), *functions]
    return "\n\n".join(parts), writers


class _Writer:
    """The state of writing one kernel: the names and ranges of its variables and buffers.

    names and helpers belong to the file: the names in use, and the helper functions so far.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: Names,
        helpers: dict[str, str],
        linkage: str = "",
        taken: Sequence[str] = (),
    ) -> None:
        self.kernel = kernel
        self.helpers = helpers
        self.symbol = names.fresh(identifier(kernel.name))
        self.body_symbol = names.fresh(f"{self.symbol}_body")
        self.entry = (
            f"{linkage}int32_t {self.symbol}"
            "(const mlc_args *args, int32_t task_begin, int32_t task_end)"
        )
        own = self.symbol, self.body_symbol
        self.local = Names((*RESERVED, *taken, *own, *externs_of(kernel.body)))
        self.called: dict[Var | Buffer, str] = {}
        self.indices: set[Var] = set(scalars_of(kernel))  # variables of the index type
        self.ranges: dict[Var, Bounds] = dict.fromkeys(self.indices, (0, None))
        self.workspace, self.workspace_bytes = scratch_layout(kernel)
        self.sharing = sharing(kernel, self.workspace)
        for n in walk(kernel.body.body):
            if isinstance(n, Call) and is_llvm(
                n.name
            ):  # a lane of it may need several of an argument
                raise _no_c(n, kernel.name)
        root = run_passes("lower", kernel.body, C_STEPS, verify_each).body
        assert isinstance(root, Block)
        self.code = root.body
        self.tasks = task_range(kernel)
        self.first: tuple[Var, str] | None = None  # the loop over tasks, and its first iteration
        self.parts = Parts()  # of the statement that is being written

    def name(self, what: Var | Buffer) -> str:
        if what not in self.called:
            self.called[what] = self.local.fresh(identifier(what.name))
        return self.called[what]

    def helper(self, name: str, dtype: str = "") -> str:
        """The C name of a helper function; float16 uses the one of float."""
        dtype = "float32" if dtype == "float16" else dtype
        if name == "round_half":
            self.helper("half_bits")
            self.helper("half_value")
        symbol = f"mlc_{name}_{dtype}" if dtype else f"mlc_{name}"
        if symbol not in self.helpers:
            is_float = dtype.startswith("float")
            own = f"{name} of floats"
            template = HELPERS[own if is_float and own in HELPERS else name]
            function = template.replace("SYMBOL", symbol).replace("TYPE", value_type(dtype))
            suffix = "" if dtype == "float64" else "f"
            for name in ("exp", "erf"):
                function = function.replace(name.upper(), f"{name}{suffix}")
            self.helpers[symbol] = function
        return symbol

    # --------------------------------------------------------------------------- functions

    def prototype(self) -> Iterator[str]:
        count = tasks(self.kernel)
        said = str(count) if isinstance(count, int) else self.name(count)
        yield f"/* {self.symbol}"
        buffers = [p for p in self.kernel.params if isinstance(p, Buffer)]
        for n, (p, flat) in enumerate(zip(buffers, self.kernel.body.buffers, strict=True)):
            shape = ", ".join(self.name(d) if isinstance(d, Var) else str(d) for d in p.shape)
            how = ", written" if p.name in self.kernel.outputs else ""
            yield f" *   data[{n}]     {self.name(flat)}: {p.dtype} [{shape}]{how}"
        for n, v in enumerate(scalars_of(self.kernel)):
            yield f" *   scalars[{n}]  {self.name(v)}"
        yield f" *   tasks [0, {said}), {self.workspace_bytes} bytes of workspace per thread */"
        yield f"{self.entry};"

    def functions(self) -> Iterator[str]:
        """The body, and the entry that calls it with the arguments that it uses."""
        nodes = list(walk(self.code))
        if self.tasks is not None:  # tasks say how often the loop over them runs
            assert isinstance(self.code, For)
            nodes = [*walk(self.code.body), *walk(self.tasks.begins_at(Var("task")))]
        used = {n for n in nodes if isinstance(n, Var)}
        used_buffers = {n.buffer for n in nodes if isinstance(n, (Load, Store))}
        written = {n.buffer for n in nodes if isinstance(n, Store)} | addressed(self.code)
        params: list[tuple[str, str, str]] = []  # name, declaration, argument
        for n, buffer in enumerate(self.kernel.body.buffers):
            if buffer in used_buffers:
                constant = "" if buffer in written else "const "
                alone = "" if buffer in self.kernel.aliased else "restrict "
                name = self.name(buffer)
                pointer = f"{constant}{memory_type(buffer.dtype)} *{alone}{name}"
                params.append((name, pointer, f"args->data[{n}]"))
        for n, v in enumerate(scalars_of(self.kernel)):
            if v in used:
                name = self.name(v)
                params.append((name, f"ptrdiff_t {name}", f"(ptrdiff_t)args->scalars[{n}]"))
        for buffer, offset in self.workspace.items():
            if buffer in used_buffers:
                alone = "" if buffer in self.sharing else "restrict "
                name = self.name(buffer)
                pointer = f"{memory_type(buffer.dtype)} *{alone}{name}"
                moved = f"(void *)((char *)args->workspace + {offset})"
                params.append((name, pointer, moved if offset else "args->workspace"))
        scratch = [b for b in self.kernel.scratch if b.scope == "local" and b in used_buffers]
        arrays = [(self.name(b), f"{memory_type(b.dtype)} %s[{b.shape[0]}];") for b in scratch]
        body = list(indented(self.root()))
        words = set(re.findall(r"\w+", "\n".join(body)))  # x << 99 is 0, and reads no x
        params = [param for param in params if param[0] in words]
        unused = [] if params else ["args"]
        if self.tasks is None:
            unused += TASKS
        else:
            params += [(task, f"ptrdiff_t {task}", task) for task in TASKS]
        declared = [declaration for _, declaration, _ in params] or ["void"]
        yield wrapped(f"static int32_t {self.body_symbol}(", declared) + " {"
        yield from (f"    {array % name}" for name, array in arrays if name in words)
        yield from body
        yield "    return 0;\n}\n"
        yield f"{self.entry} {{"
        yield from (f"    (void){name};" for name in unused)
        call = wrapped(f"return {self.body_symbol}(", [value for _, _, value in params])
        yield f"    {call};\n}}"

    def root(self) -> Iterator[str]:
        if self.tasks is None:
            yield from self.stmt(self.code)
            return
        assert isinstance(self.code, For)
        first, end = (self.iteration(self.tasks, task) for task in TASKS)
        if first not in TASKS:
            yield f"const ptrdiff_t {FIRST} = {first};"
            yield f"const ptrdiff_t {END} = {end};"
            first, end = FIRST, END
        self.first = self.code.var, first
        yield from self.loop(self.code, first, end)

    def iteration(self, tasks: TaskRange, task: str) -> str:
        """The iteration of the parallel loop that a task begins at."""
        number = Var("task")
        self.indices.add(number)
        self.ranges[number] = (0, None)
        self.called[number] = task
        return self.index(tasks.begins_at(number))

    # -------------------------------------------------------------------------- statements

    def begun(self, *roots: Expr) -> Iterator[str]:
        """The lines that a statement with these expressions needs before it."""
        self.parts = Parts(roots)
        for e in roots:
            yield from self.named(e)

    def named(self, e: Expr) -> Iterator[str]:
        """Declarations of the parts of e that have names."""
        for n in self.parts.due(e):
            name = self.local.fresh("t")
            if is_choice(n):
                condition, *sides = n.args
                yield f"{value_type(n.dtype)} {name};"
                opening = f"if ({self.expr(condition)}) {{", "} else {"
                for line, side in zip(opening, sides, strict=True):
                    yield line
                    with self.parts.branch():
                        yield from indented(self.named(side))
                        yield f"    {name} = {self.expr(side)};"
                yield "}"
            else:
                yield f"const {value_type(n.dtype)} {name} = {self.written(n)[0]};"
            self.parts.name(n, name)

    def nest(self, s: For) -> Iterator[str]:
        yield from self.begun(s.extent)
        yield from self.loop(s, "0", self.index(s.extent, SHIFT))

    def stmt(self, s: Stmt) -> Iterator[str]:
        match s:
            case For() if KEPT in s.annotations and self.first is not None:
                var, first = self.first
                task = self.name(var)
                yield f"if ({task} == {first} || {task} % {s.annotations[KEPT]} == 0) {{"
                yield from indented(self.nest(s))
                yield "}"
            case For():
                yield from self.nest(s)
            case Store(buffer, (index,), value):
                yield from self.begun(index, value)
                yield f"{self.name(buffer)}[{self.index(index)}] = {self.stored(value)};"
            case Seq(stmts):
                for stmt in stmts:
                    yield from self.stmt(stmt)
            case If(condition, then, otherwise):
                yield from self.begun(condition)
                yield f"if ({self.expr(condition)}) {{"
                yield from indented(self.stmt(then))
                if otherwise is not None:
                    yield "} else {"
                    yield from indented(self.stmt(otherwise))
                yield "}"
            case Let(var, value, body):
                yield "{"
                yield from indented(self.begun(value))
                yield f"    {self.declared(var, value)};"
                yield from indented(self.stmt(body))
                yield "}"
            case Evaluate(Call("ret", (status,))):
                yield from self.begun(status)
                yield f"return {self.expr(status)};"
            case Evaluate(Call("prefetch", (Load(buffer, (index,)),))):
                offset = f"(uintptr_t)({self.index(index)}) * sizeof *{self.name(buffer)}"
                yield f"{self.helper('prefetch')}((uintptr_t){self.name(buffer)} + {offset});"
            case Evaluate(Call(args=args) as called) if extern_name(called) is not None:
                yield from self.begun(*args)
                yield f"(void){self.extern(called)};"
            case Evaluate(value):
                yield from self.begun(value)
                yield f"(void)({self.expr(value)});"
            case _:
                raise AssertionError(f"no code for {type(s).__name__}\n{s}")

    def loop(self, s: For, begin: str, end: str) -> Iterator[str]:
        self.indices.add(s.var)
        self.ranges[s.var] = turn_range(s.extent, {})
        name = self.name(s.var)
        yield f"for (ptrdiff_t {name} = {begin}; {name} < {end}; ++{name}) {{"
        yield from indented(self.stmt(s.body))
        yield "}"

    def declared(self, var: Var, value: Expr) -> str:
        if var.dtype == "int32":  # offsets computed from it may exceed int32
            self.indices.add(var)
            return f"const ptrdiff_t {self.name(var)} = {self.index(value)}"
        return f"const {value_type(var.dtype)} {self.name(var)} = {self.expr(value)}"

    def stored(self, value: Expr) -> str:
        """A value as in memory; a copied element is not converted on the way."""
        if isinstance(value, Load):
            return self.element(value)
        match value.dtype:
            case "float16":
                return f"{self.helper('half_bits')}({self.expr(value)})"
            case "bool":
                return f"(uint8_t){self.expr(value, UNARY)}"
        return self.expr(value)

    # ----------------------------------------------------------------------------- indices

    def index(self, e: Expr, outer: int = ANY) -> str:
        """An integer expression as an offset: computed in ptrdiff_t throughout."""
        name = self.parts.get(e)
        text = self.index_text(e) if name is None else (f"(ptrdiff_t){name}", UNARY)
        return placed(text, outer)

    def index_text(self, e: Expr) -> Text:
        match e:
            case Const(value):
                return str(value), ATOM if value >= 0 else UNARY
            case Var() if e in self.indices:
                return self.name(e), ATOM
            case Binary("+" | "-" | "*", a, b):
                level = LEVELS[e.op]
                return f"{self.index(a, level)} {e.op} {self.index(b, level + 1)}", level
            case Binary("//" | "%", a, b):
                how = division(e, self.ranges)
                if how in ("/", "%"):
                    return f"{self.index(a, PRODUCT)} {how} {self.index(b, UNARY)}", PRODUCT
                return self.call_text(how, INDEX, self.index(a), self.index(b))
            case Binary("min" | "max", a, b):
                return self.call_text(e.op, INDEX, self.index(a), self.index(b))
            case Cast(dtype, a) if self.is_index(a) and dtype in ("int32", "int64"):
                return self.index_text(a)
        return f"(ptrdiff_t){self.expr(e, UNARY)}", UNARY

    def is_index(self, e: Expr) -> bool:
        """Whether e is made of loop variables and sizes only, so that it cannot wrap."""
        for n in walk(e):
            match n:
                case Var() if n in self.indices:
                    continue
                case Const(dtype="int32" | "int64"):
                    continue
                case Binary("+" | "-" | "*" | "//" | "%" | "min" | "max"):
                    continue
            return False
        return True

    # ------------------------------------------------------------------------- expressions

    def expr(self, e: Expr, outer: int = ANY) -> str:
        return placed(self.text(e), outer)

    def text(self, e: Expr) -> Text:
        """A value of its dtype, of the type value_type(dtype)."""
        name = self.parts.get(e)
        return self.written(e) if name is None else (name, ATOM)

    def written(self, e: Expr) -> Text:
        """The text of an expression without a name."""
        if self.is_index(e) and not isinstance(e, Const):
            return f"({value_type(e.dtype)}){self.index(e, UNARY)}", UNARY
        match e:
            case Const(value, dtype):
                return constant(value, dtype)
            case Var():
                return self.name(e), ATOM
            case Load(buffer):
                if buffer.dtype == "float16":
                    return f"{self.helper('half_value')}({self.element(e)})", ATOM
                return self.element(e), ATOM
            case Binary(op, a, b) if e.dtype == "bool":
                return self.logical(op, a, b)
            case Binary() if dtype_of(e.dtype).kind == "float":
                return self.float_binary(e)
            case Binary():
                return self.integer_binary(e)
            case Compare(op, a, b):
                certain = known(op, a, b)
                if certain is not None:
                    return certain, ATOM
                write = self.index if self.is_index(a) and self.is_index(b) else self.expr
                return f"{write(a, SUM)} {op} {write(b, SUM)}", COMPARE
            case Not(a):
                return f"!{self.expr(a, UNARY)}", COMPARE  # compilers ask for (!a) == b
            case Select(c, a, b) | Call("if_then_else", (c, a, b)):
                chosen = f"{self.expr(c, OR)} ? {self.expr(a, OR)} : {self.expr(b, OR)}"
                return self.narrowed(chosen, e.dtype, ANY)
            case Cast(dtype, a):
                return self.cast(a, dtype)
            case Call("likely" | "bounded", (a, *_)):
                return self.text(a)
            case Call():
                return self.call(e)
        raise AssertionError(f"no code for {type(e).__name__}\n{e}")

    def element(self, e: Load) -> str:
        return f"{self.name(e.buffer)}[{self.index(e.indices[0])}]"

    def logical(self, op: str, a: Expr, b: Expr) -> Text:
        match op:
            case "and" | "&" | "min" | "*":
                return f"{self.expr(a, AND)} && {self.expr(b, BITS)}", AND
            case "or" | "|" | "max":
                return f"{self.expr(a, BITS)} || {self.expr(b, BITS)}", OR
            case "^":
                return f"{self.expr(a, UNARY)} != {self.expr(b, UNARY)}", COMPARE
        raise CodegenError(f"no C for '{op}' of bool", where=self.kernel.name)

    def float_binary(self, e: Binary) -> Text:
        if e.op in ("min", "max"):
            return self.call_text(e.op, e.dtype, self.expr(e.a), self.expr(e.b))
        level = LEVELS[e.op]
        text = f"{self.expr(e.a, level)} {e.op} {self.expr(e.b, level + 1)}"
        return self.rounded((text, level), e.dtype)

    def rounded(self, text: Text, dtype: str) -> Text:
        """A value computed in float, as one of the dtype."""
        return (f"{self.helper('round_half')}({text[0]})", ATOM) if dtype == "float16" else text

    def integer_binary(self, e: Binary) -> Text:
        kind = dtype_of(e.dtype)
        wide = f"{'u' if kind.kind == 'uint' else ''}int{max(kind.bits, 32)}"
        match e.op:
            case "+" | "-" | "*" | "<<" | "&" | "|" | "^":
                unsigned = self.modular_text(e, f"uint{max(kind.bits, 32)}")
                if e.dtype in ("uint32", "uint64"):
                    return unsigned
                return f"({value_type(e.dtype)})({unsigned[0]})", UNARY
            case "min" | "max":
                return self.narrowed_call(e, e.op, wide)
            case ">>" if not shifts(e.b, self.ranges):
                name = "ushr" if kind.kind == "uint" else "shr"
                by = f"(uint64_t){self.expr(e.b, UNARY)}"
                return self.narrowed(self.call_text(name, wide, self.expr(e.a), by)[0], e.dtype)
        op = ">>" if e.op == ">>" else division(e, self.ranges)
        if op not in ("/", "%", ">>"):
            return self.narrowed_call(e, op, wide)
        text = f"{self.expr(e.a, UNARY)} {op} {self.expr(e.b, UNARY)}"
        return self.narrowed(text, e.dtype, SHIFT if op == ">>" else PRODUCT)

    def modular(self, e: Expr, wide: str) -> Text:
        """An integer expression modulo 2^32 or 2^64; its lowest bits are those of e."""
        name = self.parts.get(e)
        return self.modular_text(e, wide) if name is None else (f"({wide}_t){name}", UNARY)

    def modular_text(self, e: Expr, wide: str) -> Text:
        match e:
            case Binary("+" | "-" | "*" as op, a, b) if not self.is_index(e):
                level = LEVELS[op]
                left, right = self.modular(a, wide), self.modular(b, wide)
                return f"{placed(left, level)} {op} {placed(right, level + 1)}", level
            case Binary("&" | "|" | "^" as op, a, b):
                left, right = self.modular(a, wide), self.modular(b, wide)
                return f"{placed(left, UNARY)} {op} {placed(right, UNARY)}", BITS
            case Binary("<<", a, b) if not shifts(b, self.ranges):
                given, by = self.modular(a, wide)[0], f"(uint64_t){self.expr(b, UNARY)}"
                return self.call_text("shl", wide, given, by)
            case Binary("<<", a, b):
                return f"{placed(self.modular(a, wide), UNARY)} << {self.expr(b, UNARY)}", SHIFT
            case Const(value) if value >= 0:
                return constant(value, wide)
            case Cast(dtype, a) if dtype_of(a.dtype).is_integer:
                if dtype_of(a.dtype).bits < dtype_of(dtype).bits:  # the conversion to wide suffices
                    return f"({wide}_t){self.expr(a, UNARY)}", UNARY
        if e.dtype == wide:
            return self.text(e)
        return f"({wide}_t){self.expr(e, UNARY)}", UNARY

    def narrowed_call(self, e: Binary, name: str, wide: str) -> Text:
        text, level = self.call_text(name, wide, self.expr(e.a), self.expr(e.b))
        return self.narrowed(text, e.dtype, level)

    def narrowed(self, text: str, dtype: str, level: int = ATOM) -> Text:
        """Converts back to a dtype narrower than int, the narrowest type that C computes in."""
        if dtype_of(dtype).is_integer and dtype_of(dtype).bits < 32:
            return f"({value_type(dtype)}){placed((text, level), UNARY)}", UNARY
        return text, level

    def cast(self, a: Expr, dtype: str) -> Text:
        if dtype == "bool":
            return f"{self.expr(a, SUM)} != 0", COMPARE
        if dtype == "float16":
            return self.rounded((self.expr(a), ANY), dtype)
        if dtype_of(a.dtype).kind == "float" and dtype_of(dtype).is_integer:
            how = conversion(a, dtype, self.ranges)
            text, level = self.call_text(how, a.dtype, self.expr(a))
            return self.narrowed(text, dtype, level)
        return f"({value_type(dtype)}){self.expr(a, UNARY)}", UNARY

    def call_text(self, name: str, dtype: str, *args: str) -> Text:
        return f"{self.helper(name, dtype)}({', '.join(args)})", ATOM

    def extern(self, e: Call) -> str:
        """The call of a user's function, which is declared above."""
        name = extern_name(e)
        assert name is not None
        types = ["void *" if is_address(a) else value_type(a.dtype) for a in e.args]
        declared = f"{value_type(e.dtype)} {name}({', '.join(types) or 'void'});"
        if self.helpers.setdefault(name, declared) != declared:
            raise CodegenError(
                f"'{name}' is called as {declared} and as {self.helpers[name]}",
                where=self.kernel.name,
                mend="arguments of the same types: .astype",
            )
        given = (self.address(a) if is_address(a) else self.expr(a) for a in e.args)
        return f"{name}({', '.join(given)})"

    def address(self, e: Expr) -> str:
        match e:
            case Call(args=(Load(buffer, (index,)),)):
                return f"{self.name(buffer)} + {self.index(index, SUM + 1)}"
        raise AssertionError(f"no address: {e}")

    def call(self, e: Call) -> Text:
        if extern_name(e) is not None:
            return self.extern(e), ATOM
        if e.name == "reinterpret" and {e.dtype, e.args[0].dtype} <= WHOLE:
            members = f"{value_type(e.args[0].dtype)} given; {value_type(e.dtype)} read;"
            return f"((union {{ {members} }}){{{self.expr(e.args[0])}}}).read", ATOM
        if dtype_of(e.dtype).kind != "float" or e.name not in (*MATH, "fma", *ACTIVATIONS):
            raise _no_c(e, self.kernel.name)
        if e.name == "fma":  # C's fma() is a slow call where there is no instruction
            a, b, c = e.args
            text = f"{self.expr(a, PRODUCT)} * {self.expr(b, UNARY)} + {self.expr(c, PRODUCT)}"
            return self.rounded((text, SUM), e.dtype)
        args = [self.expr(a) for a in e.args]
        if e.name in ACTIVATIONS:
            return self.rounded(self.call_text(e.name, e.dtype, *args), e.dtype)
        suffix = "" if e.dtype == "float64" else "f"
        return self.rounded((f"{MATH[e.name]}{suffix}({', '.join(args)})", ATOM), e.dtype)


def _no_c(e: Call, kernel: str) -> CodegenError:
    return CodegenError(
        f"no C for T.{e.name} of {e.dtype}",
        where=kernel,
        mend="a schedule without that intrinsic: the one of the target 'c'",
    )


# dtypes whose values in C have their own number of bits
WHOLE = {"float32", "float64", "int32", "int64", "uint32", "uint64"}
TASKS = ("task_begin", "task_end")
FIRST, END = "first_iteration", "end_iteration"
