"""Names of TVM's for what exists: modules as tables, schedules of several functions, sources, the
virtual machine."""

from __future__ import annotations

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import graph, te
from mlc_deploy.graph import op


def doubled(name: str) -> mlc.PrimFunc:
    a = te.placeholder((8, 4), name="A")
    b = te.compute((8, 4), lambda i, j: a[i, j] * 2, name="B")
    return te.create_prim_func([a, b], name)


def module() -> mlc.IRModule:
    return mlc.IRModule({name: doubled(name) for name in ("main", "other")})


def test_a_module_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    mod = module()
    var = mod.get_global_var("other")
    assert (var, var.name_hint) == ("other", "other") and len(mod.get_global_vars()) == 2
    sch = mlc.Schedule(mod, func="other")
    sch.parallel(sch.get_loops("B")[0])
    mod.update_func(var, sch.mod["other"].with_attr("global_symbol", "elsewhere"))
    assert "T.parallel" in str(mod["other"]) and mod["other"].name == "other"
    assert list(mlc.IRModule.from_expr(mod["main"])) == ["main"]
    mod.show()
    assert capsys.readouterr().out == f"{mod}\n"
    with pytest.raises(ValueError, match="no function 'othre'\n  try: other"):
        mod.get_global_var("othre")


def test_handles_know_their_function() -> None:
    sch = mlc.Schedule(module())
    mine, theirs = sch.get_block("B", "main"), sch.get_block("B", "other")
    outer = sch.get_loops(mine)[0]  # of "main" again
    sch.vectorize(sch.get_loops(theirs)[1])
    sch.parallel(outer)
    assert "T.parallel" in str(sch.mod["main"]) and "T.parallel" not in str(sch.mod["other"])
    assert "T.vectorized" in str(sch.mod["other"]) and "T.vectorized" not in str(sch.mod["main"])
    again = mlc.Schedule(module())
    sch.trace.apply(again)
    assert str(again.mod) == str(sch.mod)
    before, worked_on = str(sch.mod), sch.func.name
    with pytest.raises(mlc.ScheduleError, match="handles of several functions: other, main"):
        sch.reorder(sch.get_loops(theirs)[0], outer)
    with pytest.raises(mlc.ScheduleError, match="vectorize: no loop"):
        sch.vectorize("nowhere")
    assert str(sch.mod) == before and worked_on in ("main", "other")
    sch.work_on("other")
    assert sch.func.name == "other"


def test_sources() -> None:
    lib = mlc.build(doubled("twice"), target="aarch64")
    assert "define" in lib.get_source() and "twice:" in lib.get_source("asm")
    assert "int32_t twice(" in lib.get_source("c")
    assert "int32_t twice(" in mlc.build(doubled("twice"), target="c").get_source()
    with pytest.raises(mlc.CodegenError, match="no format 'cuda'"):
        lib.get_source("cuda")


def test_virtual_machine() -> None:
    bb = graph.BlockBuilder()
    x, y = (graph.Var(name, graph.tensor_type((2, 3))) for name in "xy")
    with bb.function("main", [x, y]):
        bb.emit_func_output([bb.emit(op.add(x, y)), bb.emit(op.relu(x))])
    one, two = np.full((2, 3), -1, np.float32), np.full((2, 3), 2, np.float32)
    with mlc.VirtualMachine(mlc.compile(bb.get(), "host"), "local://") as vm:
        total, positive = vm["main"](one, y=two)
        assert (total == 1).all() and (positive == 0).all()
        assert len(vm.time_evaluator("main", number=1, repeat=2)(one, two).samples) == 2
        with pytest.raises(mlc.InputError, match="no function 'mian'"):
            vm["mian"]
        with pytest.raises(mlc.InputError, match="3 inputs are given, and the model takes 2"):
            vm["main"](one, two, two)
