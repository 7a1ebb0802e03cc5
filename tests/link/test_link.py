"""C of the user's as a part of kernels: linked, loaded, run in the worker, saved and exported."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.graph import BlockBuilder
from mlc_deploy.graph.external import _REGISTERED
from mlc_deploy.script import tir as T
from tests.link.programs import SOURCE, mix, mixed, object_of, target_of
from tests.runtime.test_run_command import run

Golden = Callable[..., None]
BOARDS = {"x86_64": "local://", "arm": "qemu://cortex-a8", "aarch64": "qemu://cortex-a53"}
FORMS = [
    ("x86_64", ()), ("x86_64", ("-fPIC",)), ("x86_64", ("-O0", "-ffunction-sections")),
    ("arm", ()), ("arm", ("-fPIC",)), ("arm", ("-mthumb",)), ("arm", ("-mthumb", "-fPIC")),
    ("aarch64", ()), ("aarch64", ("-fPIC",)), ("aarch64", ("-fcommon", "-O1")),
]  # fmt: skip
GNU = {"arm": "arm-linux-gnueabihf-gcc", "aarch64": "aarch64-linux-gnu-gcc", "x86_64": "gcc"}
GNU_FORMS = [
    (m, f) for m in GNU for f in ((), ("-fPIC",), ("-fpic",), ("-marm", "-fPIC"), ("-fcommon",))
    if "-marm" not in f or m == "arm"
]  # fmt: skip
A = np.linspace(-2, 2, 16, dtype="float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("link")


@pytest.fixture
def references() -> object:
    before = dict(_REGISTERED)

    def own_mix(a: np.ndarray, out: np.ndarray, n: int) -> None:
        out[:] = mixed(a[:n])

    mlc.register_func("own_mix", own_mix)
    yield None
    _REGISTERED.clear()
    _REGISTERED.update(before)


def computed(machine: str, file: Path) -> np.ndarray:
    lib = mlc.build(mix(), target=target_of(machine), name="mix", link=[file])
    with mlc.connect(BOARDS[machine]) as board:
        a, d = board.tensor(A), board.tensor(np.zeros_like(A))
        board.load(lib)["mix"](a, d)
        return d.numpy()


@pytest.mark.parametrize(("machine", "flags"), FORMS)
def test_any_form_of_code(machine: str, flags: tuple[str, ...], folder: Path) -> None:
    got = computed(machine, object_of(machine, folder, *flags))
    np.testing.assert_allclose(got, mixed(A * 2) - 1, rtol=1e-5)


@pytest.mark.parametrize(("machine", "flags"), GNU_FORMS)
def test_any_form_of_gnu_code(machine: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Debian's gcc for ARM makes Thumb code, which kernels of ARM code call and jump to."""
    compiler = shutil.which(GNU[machine])
    if compiler is None or subprocess.run([compiler, "-E", SOURCE], capture_output=True).returncode:
        pytest.skip(f"no {GNU[machine]} here: apt install gcc-{GNU[machine][:-4]}")
    made = tmp_path / "own.o"
    command = [compiler, "-O2", *flags, "-fno-stack-protector", "-c", SOURCE, "-o", made]
    subprocess.run(list(map(str, command)), check=True)
    np.testing.assert_allclose(computed(machine, made), mixed(A * 2) - 1, rtol=1e-5)


def test_functions_of_numbers_stand_in_expressions(folder: Path) -> None:
    """They are called once per lane of a vector."""
    a = te.placeholder((40,), name="a")
    b = te.compute(
        (40,),
        lambda i: (
            1 + te.call_extern("float32", "own_scale", a[i], 3.0, i, a[i].astype("float64") * 0.5)
        ),
        name="b",
    )
    x = np.arange(40, dtype="float32")
    for machine, url in BOARDS.items():
        lib = mlc.build([a, b], target=target_of(machine), link=[object_of(machine, folder)])
        with mlc.connect(url) as board:
            given, out = board.tensor(x), board.tensor(np.zeros(40, "float32"))
            board.load(lib)["main"](given, out)
            np.testing.assert_array_equal(out.numpy(), x * 4.5 + 1)


@T.prim_func
def rows(a: T.Buffer((6, 9), "int8"), out: T.Buffer((6,), "int32")):  # type: ignore[no-untyped-def, valid-type]
    for i in T.parallel(6):
        with T.block("row"):
            vi = T.axis.spatial(6, i)
            T.reads(a[vi, 0:9])
            T.writes(out[vi])
            out[vi] = 100
            T.call_extern("void", "own_row", T.address_of(a[vi, 0]), out.data, T.int64(0))
            T.call_extern(
                "void", "own_row", T.address_of(a[vi, 0]), T.address_of(out[vi]), T.int64(9)
            )


def test_script_with_addresses_of_rows(folder: Path) -> None:
    """What is stored before the call is there for it, and text comes back as it was."""
    assert str(mlc.from_script(str(rows))) == str(rows)
    x = np.arange(54, dtype="int8").reshape(6, 9)
    for machine, url in BOARDS.items():
        lib = mlc.build(rows, target=target_of(machine), link=[object_of(machine, folder)])
        with mlc.connect(url) as board:
            a, out = board.tensor(x), board.tensor(np.zeros(6, "int32"))
            board.load(lib)["rows"](a, out)
            np.testing.assert_array_equal(out.numpy(), 100 + x.astype("int32").sum(1))


def test_the_interpreter_calls_what_stands_for_it() -> None:
    from mlc_deploy.ir.interp import run as interpret

    def own_row(a: np.ndarray, out: np.ndarray, n: int) -> None:
        out[0] += int(a.reshape(-1)[:n].sum())

    x, out = np.arange(54, dtype="int8").reshape(6, 9), np.zeros(6, "int32")
    interpret(rows, x, out, externs={"own_row": own_row}.__getitem__)
    np.testing.assert_array_equal(out, 100 + x.astype("int32").sum(1))


def module() -> mlc.IRModule:
    """relu(x) -> own_mix -> add: one operator of a graph is C."""
    builder = BlockBuilder("main")
    with builder.function("main"):
        x = builder.param("x", (1, 16))
        positive = builder.emit("relu", x)
        called = builder.emit_te(
            lambda a: te.extern(
                (1, 16), [a],
                lambda ins, outs: te.call_extern("int32", "own_mix", ins[0], outs[0], 16),
                name="mix",
            ),
            positive,
        )  # fmt: skip
        builder.finish([builder.emit("add", called, positive)])
    return builder.get()


@pytest.mark.parametrize("machine", BOARDS)
def test_one_operator_of_a_graph(
    machine: str, folder: Path, tmp_path: Path, references: object
) -> None:
    """Compared with the reference, saved, and run without a laptop."""
    made = mlc.compile(module(), target_of(machine), link=[object_of(machine, folder)])
    assert made.notes == ()
    with mlc.connect(BOARDS[machine]) as board:
        done = mlc.deploy(made, board, {"x": A[None]})
    assert done.ok
    (output,) = done.outputs.items()
    made.save(tmp_path / "m.mlc")
    np.save(tmp_path / "x.npy", A[None])
    ended = run("m.mlc", "--input", "x=x.npy", "--output", "out", at=tmp_path, machine=machine)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{output[0]}.npy"), output[1])


def test_part_of_a_c_program(folder: Path, tmp_path: Path, references: object) -> None:
    """The user's code is inside of the exported object; without it, it is the program's to link."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here: apt install gcc")
    main = """
        #include "mixed.h"
        #include <stdio.h>
        int main(void) {
            static _Alignas(64) float x[16], y[16];
            static _Alignas(64) unsigned char memory[MIXED_MEMORY_BYTES + 64];
            for (int i = 0; i < 16; i++) x[i] = (float)i / 8;
            int status = mlc_model_run(&mixed, NULL, memory, (void *[]){x}, (void *[]){y});
            for (int i = 0; i < 16; i++) printf("%.9g ", (double)y[i]);
            return status;
        }
    """
    x = np.arange(16, dtype="float32") / 8
    for name, link in (("inside", [object_of("x86_64", folder, "-fPIC")]), ("beside", [])):
        to = tmp_path / name
        made = mlc.compile(module(), "host", link=link)
        note = "no linked object defines own_mix, so boards refuse the model (--link FILE.o)"
        assert made.notes == (() if link else (note,))
        made.export(to, "mixed")
        (to / "main.c").write_text(main)
        more = [] if link else [str(SOURCE)]
        command = [compiler, "main.c", "mlc_runtime.c", "mixed.o", *more, "-fPIE", "-pie", "-lm"]
        done = subprocess.run([*command, "-o", "made"], cwd=to, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ended = subprocess.run([to / "made"], capture_output=True, text=True)
        got = np.array(ended.stdout.split(), "float32")
        np.testing.assert_allclose(got, mixed(x) + x, rtol=1e-5)
