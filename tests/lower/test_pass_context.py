"""PassContext: which passes run, the options they have, and who watches."""

from __future__ import annotations

import contextvars
import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import PrimFunc, te
from mlc_deploy.graph import PASSES, BlockBuilder, Function, optimize
from mlc_deploy.ir import For, seq, statements, with_fields
from mlc_deploy.ir.interp import run
from mlc_deploy.ir.verify import VerifyError
from mlc_deploy.lower import STEPS, lower
from mlc_deploy.passes.context import LEVELS, OPTIONS, PHASES, option

Golden = Callable[..., None]


def tiled() -> PrimFunc:
    """B = A * 2 + 1 over 10, in vectors of 4 with a tail."""
    a = te.placeholder((10,), "float32", "A")
    b = te.compute((10,), lambda i: a[i] * 2 + 1, name="B")
    sch = mlc.Schedule(te.create_prim_func([a, b], "tiled"))
    outer, lanes = sch.split(sch.get_loops("B")[0], [None, 4])
    sch.vectorize(lanes)
    sch.unroll(outer)
    return sch.func


def names_run(func: PrimFunc) -> list[str]:
    seen: list[str] = []
    lower(func, watch=lambda name, _, __: seen.append(name))
    return seen


STEP_NAMES = [s.__name__ for s in STEPS if not isinstance(s, str)]


def test_all_steps_run_by_default() -> None:
    assert names_run(tiled()) == STEP_NAMES


def test_level_0_runs_what_must_be_done() -> None:
    with mlc.PassContext(opt_level=0):
        assert set(names_run(tiled())) == {n for n in STEP_NAMES if LEVELS[n] <= 0}
    with mlc.PassContext(opt_level=0, required_pass=["vectorize_loops"]):
        assert "vectorize_loops" in names_run(tiled())


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("off", [None, *sorted({n for n in STEP_NAMES if LEVELS[n] >= 0})])
def test_results_do_not_depend_on_passes(level: int, off: str | None) -> None:
    given = np.arange(10, dtype=np.float32)
    found = np.zeros(10, np.float32)
    with mlc.PassContext(opt_level=level, disabled_pass=[off] if off else []):
        run(lower(tiled()).body, given, found)
    assert (found == given * 2 + 1).all()


def test_disabled_pass_leaves_its_work_undone() -> None:
    with mlc.PassContext(disabled_pass=["unroll_loops"]):
        kinds = [s.kind for s in statements(lower(tiled()).body.body) if isinstance(s, For)]
    assert "unrolled" in kinds
    assert not any(isinstance(s, For) for s in statements(lower(tiled()).body.body))


def test_innermost_context_holds_alone() -> None:
    with mlc.PassContext(opt_level=1, config={"lower.auto_unroll": 3}):
        with mlc.PassContext(opt_level=3) as inner:
            assert mlc.PassContext.current() is inner
            assert option("lower.auto_unroll") == OPTIONS["lower.auto_unroll"]
        assert option("lower.auto_unroll") == 3
    assert mlc.PassContext.current().opt_level == 2


def test_a_context_can_be_entered_again_within_itself() -> None:
    context = mlc.PassContext(opt_level=1)
    with context, context:
        pass
    assert mlc.PassContext.current() is not context


def test_threads_have_contexts_of_their_own() -> None:
    levels: dict[str, int] = {}

    def look(name: str) -> None:
        levels[name] = mlc.PassContext.current().opt_level

    with mlc.PassContext(opt_level=3):
        bare = threading.Thread(target=look, args=["bare"])
        copied = threading.Thread(target=contextvars.copy_context().run, args=[look, "copied"])
        for thread in (bare, copied):
            thread.start()
            thread.join()
    assert levels == {"bare": 2, "copied": 3}


# ------------------------------------------------------------------------------- graph passes


def network() -> Function:
    """The same relu twice."""
    b = BlockBuilder("net")
    x = b.param("x", (2, 3))
    return b.finish([b.emit("relu", x), b.emit("relu", x)])


def test_graph_passes_are_switched_by_the_same_context() -> None:
    assert len(optimize(network()).bindings) == 1
    with mlc.PassContext(disabled_pass=["eliminate_common_subexpressions"]):
        assert len(optimize(network()).bindings) == 2
    with mlc.PassContext(opt_level=0):
        assert len(optimize(network()).bindings) == 2
    needed = ["eliminate_common_subexpressions", "eliminate_dead_code"]
    with mlc.PassContext(opt_level=0, required_pass=needed):
        assert len(optimize(network()).bindings) == 1


def test_every_pass_says_whether_it_may_be_left_out() -> None:
    names = {p.__name__ for p in PASSES} | set(STEP_NAMES)
    assert names <= set(LEVELS)


# --------------------------------------------------------------------------- passes of the user


def test_phases_stand_in_order() -> None:
    assert tuple(s for s in STEPS if isinstance(s, str)) == PHASES["lower"]


@pytest.mark.parametrize("phase", [*PHASES["lower"], *range(4)])
def test_passes_of_the_user_run_at_their_phase(phase: str | int) -> None:
    def mine(func: PrimFunc) -> PrimFunc:
        return func

    with mlc.PassContext(config={"lower.add_pass": [(phase, mine)]}):
        seen = names_run(tiled())
    following = {"blocks": "lower_blocks", "loops": "partition_loops", "flat": "vectorize_loops"}
    named = PHASES["lower"][phase] if isinstance(phase, int) else phase
    after = seen[seen.index("mine") + 1 :]
    assert after[:1] == ([following[named]] if named in following else [])


def test_passes_of_the_user_are_verified() -> None:
    def doubled(func: PrimFunc) -> PrimFunc:
        return with_fields(func, body=seq([func.body, func.body]))

    with (
        mlc.PassContext(config={"lower.add_pass": [("blocks", doubled)]}),
        pytest.raises(VerifyError, match="after doubled: two "),
    ):
        lower(tiled())


def test_passes_of_the_user_run_on_graphs() -> None:
    seen: list[str] = []

    def first(function: Function) -> Function:
        seen.append("first")
        return function

    with mlc.PassContext(config={"graph.add_pass": [("imported", first)]}):
        mlc.compile(network(), "x86_64")
    assert seen == ["first"]


# -------------------------------------------------------------------------------- instruments


class Diary(mlc.Instrument):
    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def enter(self) -> None:
        self.diary.append(f"{self.name} enters")

    def before(self, name: str, program: Any) -> None:
        self.diary.append(f"{self.name} before {name}")

    def after(self, name: str, program: Any, changed: bool) -> None:
        self.diary.append(f"{self.name} after {name}: {changed}")

    def exit(self) -> None:
        self.diary.append(f"{self.name} leaves")


def test_hooks_are_called_in_order(golden: Golden) -> None:
    diary: list[str] = []
    with mlc.PassContext(opt_level=0, instruments=[Diary("a", diary), Diary("b", diary)]):
        lower(tiled())
    golden("\n".join(diary))


def test_instruments_leave_when_another_cannot_enter() -> None:
    class Broken(mlc.Instrument):
        def enter(self) -> None:
            raise RuntimeError("no")

    diary: list[str] = []
    context = mlc.PassContext(instruments=[Diary("a", diary), Broken()])
    with pytest.raises(RuntimeError), context:
        pass
    assert diary == ["a enters", "a leaves"]
    assert mlc.PassContext.current() is not context


def test_timing() -> None:
    timing = mlc.TimingInstrument()
    with mlc.PassContext(instruments=[timing]):
        lower(tiled())
        lower(tiled())
    assert timing.runs == {n: 2 * STEP_NAMES.count(n) for n in STEP_NAMES}
    assert all(seconds > 0 for seconds in timing.seconds.values())
    header, *rows, total = timing.render().splitlines()
    assert header.split() == ["pass", "runs", "ms", "share"]
    assert {row.split()[0] for row in rows} == set(STEP_NAMES)
    assert re.fullmatch(rf"all +{2 * len(STEP_NAMES)} +\d+\.\d\d", total)


def test_printing(golden: Golden) -> None:
    text = io.StringIO()
    shown = ["vectorize_loops", "narrow_indices"]
    with mlc.PassContext(instruments=[mlc.PrintInstrument(shown, before=True, file=text)]):
        lower(tiled())
    golden(text.getvalue())


@pytest.mark.parametrize("by", ["environment", "option"])
def test_dump(by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if by == "environment":
        monkeypatch.setenv("MLC_DUMP", "flatten_buffers,narrow_indices")
        lower(tiled())
    else:
        with mlc.PassContext(config={"lower.dump": "flatten_buffers,narrow_indices"}):
            lower(tiled())
    headings = re.findall(r"--- (.*)\n(.*)", capsys.readouterr().err)
    assert headings == [
        ("tiled: after narrow_indices", "(unchanged)"),
        ("tiled: after flatten_buffers", "@T.prim_func"),
    ]


def test_dump_of_what_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_DUMP", "flatten_buffers,vectorise_loops")
    with pytest.raises(mlc.PassError) as refused:
        lower(tiled())
    assert str(refused.value).splitlines()[0] == "MLC_DUMP: no pass 'vectorise_loops'"
    assert "try: all, or one of vectorize_loops" in str(refused.value)
    monkeypatch.setenv("MLC_DUMP", "fold_constants")  # a pass of graphs
    lower(tiled())


EVERY_STEP = """
import mlc_deploy as mlc
mlc.PassContext  # all that comes before a user's first use of a name
from mlc_deploy.passes.context import LEVELS
from mlc_deploy.driver.model_graph import graph_steps
from mlc_deploy.lower import STEPS
known = set(LEVELS)
steps = (*graph_steps(mlc.Target("aarch64")), *STEPS)
print({step.__name__ for step in steps if not isinstance(step, str)} - known or "all known")
"""


def test_every_pass_is_known_before_the_first_model_is_compiled() -> None:
    run = subprocess.run([sys.executable, "-c", EVERY_STEP], capture_output=True, text=True)
    assert run.stdout == "all known\n", run.stderr


# ---------------------------------------------------------------------------------- refusals

MISTAKES: dict[str, Callable[[], Any]] = {
    "level": lambda: mlc.PassContext(opt_level=5),
    "level is not a number": lambda: mlc.PassContext(opt_level="2"),  # type: ignore[arg-type]
    "disabled unknown": lambda: mlc.PassContext(disabled_pass=["vectorise_loops"]),
    "required unknown": lambda: mlc.PassContext(required_pass=["fold_constant"]),
    "one name": lambda: mlc.PassContext(disabled_pass="unroll_loops"),
    "disabled needed": lambda: mlc.PassContext(disabled_pass=["flatten_buffers"]),
    "disabled and required": lambda: mlc.PassContext(
        disabled_pass=["unroll_loops"], required_pass=["unroll_loops"]
    ),
    "option unknown": lambda: mlc.PassContext(config={"lower.unrol_limit": 3}),
    "option of another type": lambda: mlc.PassContext(config={"lower.unroll_limit": "many"}),
    "flag of another type": lambda: mlc.PassContext(config={"lower.bound_check": 1}),
    "option negative": lambda: mlc.PassContext(config={"lower.unroll_limit": -1}),
    "phase unknown": lambda: mlc.PassContext(config={"lower.add_pass": [("end", len)]}),
    "phase number": lambda: mlc.PassContext(config={"lower.add_pass": [(4, len)]}),
    "pass without phase": lambda: mlc.PassContext(config={"graph.add_pass": [len]}),
}


def test_refusals(golden: Golden) -> None:
    text = []
    for name, mistake in MISTAKES.items():
        with pytest.raises(mlc.PassError) as refused:
            mistake()
        text.append(f"# {name}\n{refused.value}")
    golden("\n\n".join(text), "pass_context_refusals")
