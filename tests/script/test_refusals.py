"""Every way in which a script can be wrong, with the whole message; and that it points right."""

# mypy: disable-error-code="valid-type, no-untyped-def, name-defined"

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy import ScriptError
from mlc_deploy.script import from_script
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T
from tests.script.programs import random_function

HEADER = '@T.prim_func\ndef f(A: T.Buffer((8, 8)), B: T.Buffer((8,), "int32"), n: T.int32):\n'
BLOCK = HEADER + '    for i in range(8):\n        with T.block("B"):\n'


def in_function(body: str) -> str:
    return HEADER + "".join(f"    {line}\n" for line in body.splitlines())


def in_block(body: str) -> str:
    lines = ["vi = T.axis.spatial(8, i)", *body.splitlines()]
    return BLOCK + "".join(f"            {line}\n" for line in lines)


def with_params(params: str, body: str = "pass") -> str:
    return f"@T.prim_func\ndef f({params}):\n" + "".join(f"    {s}\n" for s in body.splitlines())


FUNCTIONS = {
    "no Python": "@T.prim_func\ndef f(:\n    pass\n",
    "indentation": "@T.prim_func\ndef f():\npass\n",
    "nothing": "N = 4\n",
    "two modules": "@I.ir_module\nclass A:\n    pass\n@I.ir_module\nclass B:\n    pass\n",
    "no decorator": "def f():\n    pass\n",
    "class without decorator": "class A:\n    pass\n",
    "graph function": "@I.ir_module\nclass A:\n    @R.function\n    def f(x):\n        return x\n",
    "other import": "import os\n",
    "code around": "print(1)\n",
    "two functions of a name": HEADER + "    pass\n" + HEADER + "    pass\n",
    "no type": with_params("A"),
    "unknown type": with_params("A: 3"),
    "expression as type": with_params("A: T.max"),
    "keywords": with_params("*, A: T.int32"),
    "defaults": with_params("n: T.int32 = 4"),
    "handle without buffer": with_params("a: T.handle"),
    "buffer matched twice": with_params(
        "a: T.handle", "A = T.match_buffer(a, (4,))\nB = T.match_buffer(a, (4,))"
    ),
    "match of a buffer": in_function("C = T.match_buffer(A, (8,))"),
    "symbol without argument": in_function("m = T.int32()\nfor i in range(m):\n    B[i] = 0"),
    "string as dimension": with_params('A: T.Buffer(("n",), "int8")'),
    "float as dimension": with_params("A: T.Buffer((1.5,))"),
    "negative dimension": with_params("A: T.Buffer((-4,))"),
    "unknown dtype": with_params('A: T.Buffer((4,), "float31")'),
    "dtype that is none": with_params("A: T.Buffer((4,), 3)"),
    "scope": in_function('C = T.alloc_buffer((4,), scope="shared")'),
    "alignment": in_function("C = T.alloc_buffer((4,), align=0)"),
    "strides": in_function("C = T.alloc_buffer((4,), strides=(1, 2))"),
    "func_attr below": in_block('T.func_attr({"a": 1})'),
    "attributes that are not dict": in_function("T.func_attr([1])"),
}
STATEMENTS = {
    "return": in_function("return A"),
    "while": in_function("while n > 0:\n    pass"),
    "for over a buffer": in_function("for i in A:\n    pass"),
    "for over a list": in_function("for i in [1, 2]:\n    pass"),
    "for else": in_function("for i in range(4):\n    pass\nelse:\n    pass"),
    "step": in_function("for i in range(0, 8, 2):\n    pass"),
    "too few names": in_function("for i, j in T.grid(4):\n    pass"),
    "float extent": in_function("for i in range(2.5):\n    pass"),
    "annotations that are not dict": in_function("for i in T.serial(4, annotations=3):\n    pass"),
    "unknown keyword": in_function("for i in T.serial(4, unroll=True):\n    pass"),
    "dtype of a loop": in_function('for i in T.serial(4, dtype="float32"):\n    pass'),
    "thread axis": in_function('for i in T.thread_binding(4, "threadIdx.x"):\n    pass'),
    "with something else": in_function("with A:\n    pass"),
    "with a loop": in_function("with T.grid(4):\n    pass"),
    "let without name": in_function("with T.LetStmt(n):\n    pass"),
    "loop as value": in_function("x = T.grid(4)"),
    "value as statement": in_function("T.max(n, 1)"),
    "buffer type as statement": in_function("T.Buffer((4,))"),
    "axis as statement": in_block("T.axis.spatial(8, i)"),
    "block as statement": in_function('T.block("C")'),
    "function as statement": in_function("print(n)"),
    "store of another dtype": in_function("B[0] = A[0, 0]"),
    "float to integers": in_function("B[0] = 1.5"),
    "store of a slice": in_function("B[0:4] = 1"),
    "store to a number": in_function("n[0] = 1"),
    "lanes": in_function("B[T.Ramp(0, 1, 4)] = T.Broadcast(n, 2)"),
    "too few indices": in_function("A[0] = 1.0"),
    "float index": in_function("B[1.5] = 1"),
    "declared of another dtype": in_function("x: T.float32 = n"),
    "declared of no dtype": in_function("x: int = n"),
    "condition that is none": in_function("if n:\n    pass"),
    "condition on a buffer": in_function("if A:\n    pass"),
    "expression as dtype": in_function("for i in T.serial(4, dtype=n):\n    pass"),
    "names for a tuple": in_function("x, y = 1, 2, 3"),
    "delete": in_function("del A"),
}
BLOCKS = {
    "axis outside": in_function("vi = T.axis.spatial(8, n)"),
    "axis in a loop": in_block("for j in range(4):\n    vj = T.axis.spatial(4, j)"),
    "reads in a loop": in_block("for j in range(4):\n    T.reads(A[vi, j])"),
    "alloc in a loop": in_function("for j in range(4):\n    C = T.alloc_buffer((4,))"),
    "kinds": in_block('vj = T.axis.remap("X", [i])'),
    "too few kinds": in_block('vj, vk = T.axis.remap("S", [i, i])'),
    "too few names": in_block('vj = T.axis.remap("SS", [i, i])'),
    "remap of no loop": in_block('vj = T.axis.remap("S", [i + 1])'),
    "remap of no list": in_block('vj = T.axis.remap("S", i)'),
    "domain": in_block("vj = T.axis.spatial((1, 8), i)"),
    "binding to own iteration": in_block("vj = T.axis.spatial(8, vi)"),
    "predicate on own iteration": in_block("T.where(vi < 4)"),
    "predicate that is none": in_block("T.where(i)"),
    "other axis": in_block("vj = T.axis.opaque(8, i)"),
    "two blocks of a name": in_block('with T.block("B"):\n    pass'),
    "name that is none": in_function("with T.block(3):\n    pass"),
    "init twice": in_block("with T.init():\n    B[vi] = 0\nwith T.init():\n    B[vi] = 0"),
    "init outside": in_function("with T.init():\n    B[0] = 0"),
    "no region": in_block("T.reads(n)"),
    "region with a step": in_block("T.reads(A[vi, 0:8:2])"),
    "region of other dimensions": in_block("T.reads(A[0:4])"),
    "loop variable after its loop": in_function("for j in range(4):\n    pass\nB[j] = 0"),
}
EXPRESSIONS = {
    "unknown name": in_function("B[0] = nn"),
    "unknown word": in_function("B[0] = T.maximum(n, 1)"),
    "word of other scripts": in_function("C = T.decl_buffer((4,))"),
    "too few arguments": in_function("B[0] = T.max(n)"),
    "a number outside of its dtype": in_function("A[0, 0] = T.float32(T.uint8(300))"),
    "a negative number beside uint32": in_function("A[0, 0] = T.float32(T.uint32(n) + -1)"),
    "division of integers": in_function("B[0] = n / 2"),
    "remainder of floats": in_function("A[0, 0] = A[0, 0] % 2.0"),
    "exp of an integer": in_function("B[0] = T.exp(n)"),
    "division by zero": in_function("B[0] = 1 // 0"),
    "shift": in_function("B[0] = 1 << 1000000"),
    "and of integers": in_function("B[0] = n and n"),
    "not of an integer": in_function("B[0] = not n"),
    "invert": in_function("B[0] = ~n"),
    "power": in_function("B[0] = n ** 2"),
    "in": in_function("if n in (1, 2):\n    pass"),
    "lambda": in_function("x = lambda: 1"),
    "comprehension": in_function("x = [i for i in (1, 2)]"),
    "f-string": in_function('with T.block(f"{n}"):\n    pass'),
    "builtin of an expression": in_function("B[0] = max(n, 1)"),
    "call of a number": in_function("B[0] = (3)(4)"),
    "string as value": in_function('B[0] = "3"'),
    "buffer as value": in_function("A[0, 0] = A"),
    "slice as value": in_function("A[0, 0] = A[0, 0:4]"),
    "word as value": in_function("B[0] = T.max"),
    "statement as value": in_function("B[0] = n + T.evaluate(0)"),
    "element of a number": in_function("B[0] = n[0]"),
    "attribute": in_function("B[0] = n.real"),
    "key": 'D = {"a": 1}\n' + in_function('B[0] = D["b"]'),
    "double star": in_function("B[0] = T.max(**{})"),
    "star of a number": in_function("B[0] = T.max(*n)"),
    "complex number": in_function("B[0] = 2j"),
    "dtype that is a number": in_function("B[0] = T.Cast(8, n)"),
    "intrinsic without name": in_function('B[0] = T.call_intrin("int32", n)'),
    "number of lanes": in_function("B[0] = T.Broadcast(1, n)"),
    "lanes of a shuffle": in_function("B[0] = T.Shuffle([n, n], [2])"),
    "dtype of a cast": in_function('B[0] = n.astype("int31")'),
    "wide characters": in_function('größe = "ünïcödé"; B[0] = größe'),
    "several lines": in_function("B[0] = T.max(\n    A[0, 0],\n    n,\n)"),
}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("functions", FUNCTIONS),
        ("statements", STATEMENTS),
        ("blocks", BLOCKS),
        ("expressions", EXPRESSIONS),
    ],
)
def test_messages(name: str, group: dict[str, str], golden: Callable[..., None]) -> None:
    told: list[str] = []
    for case, text in group.items():
        with pytest.raises(ScriptError) as error:
            from_script(text)
            pytest.fail(f"{case} is taken:\n{text}")
        told.append(f"# {case}\n{error.value}\n")
    golden("\n".join(told), f"script_refusals_{name}")


def test_deep_nesting() -> None:
    with pytest.raises(ScriptError, match="nested"):
        from_script(in_function(f"B[0] = {'(' * 5000}n{')' * 5000}"))
    with pytest.raises(ScriptError, match="this function is nested too deeply"):
        from_script(in_function(f"B[0] = {'n + ' * 990}n"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_whatever_is_written_is_read_or_refused(seed: int) -> None:
    """Programs with words left out, repeated and exchanged raise nothing but ScriptError."""
    rng = random.Random(seed)
    words = re.findall(r'\w+|"[^"\n]*"|\n *|\S| +', random_function(rng).script())
    for _ in range(6):
        changed = list(words)
        place, other = rng.randrange(len(words)), rng.randrange(len(words))
        changed[place] = rng.choice(("", words[other]))
        with contextlib.suppress(ScriptError):
            from_script("".join(changed))


def test_null_byte() -> None:
    with pytest.raises(ScriptError, match="null byte"):
        from_script("\0")


def message_of(define: Callable[[], object]) -> str:
    with pytest.raises(ScriptError) as error:
        define()
    return str(error.value)


def test_points_into_the_users_file() -> None:
    def define() -> None:
        @T.prim_func
        def f(A: T.Buffer((8,), "int32")):
            # äöü
            # a comment in the first column
            for i in range(8):
                A[i] = missing  # noqa: F821

    assert message_of(define) == (
        "name 'missing' is not defined here\n"
        f"  in:  {__file__}:{define.__code__.co_firstlineno + 6}:24\n"
        "       A[i] = missing  # noqa: F821\n"
        "              ^^^^^^^"
    )


def test_long_lines_are_shown_in_part() -> None:
    values = " + ".join(["n"] * 50)
    text = in_function(f"B[0] = {values} + nowhere + {values}")
    _, place, shown, mark = message_of(lambda: from_script(text)).splitlines()
    assert place == "  in:  <script>:3:212"
    assert len(shown) == 7 + 96 + 2 and shown[7] == shown[-1] == "…"
    assert shown[mark.index("^") : len(mark)] == "nowhere"


def test_values_that_are_not_taken_from_outside() -> None:
    class Sizes:
        n = 4

    sizes: Any = Sizes()

    def define() -> None:
        @T.prim_func
        def f(A: T.Buffer((8,), "int32")):
            A[0] = sizes.n

    assert message_of(define).endswith(
        "A[0] = sizes.n\n              ^^^^^\n"
        "  try: only numbers, strings, expressions, and tuples, lists and dicts of them are taken"
    )


def test_function_without_source() -> None:
    with pytest.raises(ScriptError) as error:
        exec("@T.prim_func\ndef f():\n    pass\n", {"T": T, "__name__": "nowhere"})
    assert str(error.value) == (
        "the source of 'f' cannot be found\n  try: write it in a file, or use from_script(text)"
    )


def test_lambda_is_no_function() -> None:
    assert "functions written with `def`" in message_of(lambda: T.prim_func(lambda: None))


def test_class_with_a_plain_function() -> None:
    def define() -> None:
        @I.ir_module
        class Module:
            def f(self) -> None: ...

    assert message_of(define) == (
        "@I.ir_module: function 'f' is not decorated\n"
        "  in:  class Module\n"
        "  try: @T.prim_func or @R.function on functions"
    )
