"""Every registered tensor intrinsic: its implementation, compiled and run on a CPU that has what it
needs, gives what its description does; and it is the instruction that it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.ir import numpy_dtype, value_range
from mlc_deploy.ir.interp import run
from mlc_deploy.ops import OWN_INTRINS
from mlc_deploy.schedule import TensorIntrin
from mlc_deploy.schedule.tensor_intrin import features_for
from mlc_targets import Target
from tests.ops.intrinsic_programs import needs_v8, offsets_of, program_of, target_of
from tests.runtime.driver import run_driver
from tests.sessions import skip_unless_runs

if TYPE_CHECKING:
    from mlc_rpc import Session

ROOT = Path(__file__).resolve().parents[2]
INTRINS = sorted(OWN_INTRINS, key=lambda intrin: intrin.name)
ROUNDS = 6
Arrays = list[NDArray[Any]]

# The plainest CPU that has a feature, the first that fits.
CPUS = {
    "aarch64": [
        (set(), "cortex-a72"),
        ({"dotprod", "fullfp16"}, "cortex-a76"),
        ({"i8mm"}, "max,sve=off,sme=off"),
    ],
    "arm": [({"vfp4"}, "cortex-a7")],
}


@pytest.mark.parametrize("intrin", INTRINS, ids=lambda intrin: intrin.name)
def test_own_intrinsics_are_of_the_form_that_users_are_held_to(intrin: TensorIntrin) -> None:
    intrin.check()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects and assembly of all intrinsics."""
    path = tmp_path_factory.mktemp("intrinsics")
    command = [sys.executable, "-m", "tests.ops.intrinsic_programs", str(path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    last = result.stdout.split()[-1:]
    assert result.returncode == 0, f"while {last} was compiled:\n{result.stderr[-3000:]}"
    return path


@pytest.fixture(scope="session")
def boards(local: Session) -> Iterator[Callable[[TensorIntrin], Session]]:
    """A session with an emulated CPU for an intrinsic, each opened once; x86-64 is not emulated."""
    sessions: dict[str, Session] = {}
    with ExitStack() as stack:

        def board(intrin: TensorIntrin) -> Session:
            ((arch, features),) = intrin.features.items()
            if arch == "x86_64":
                skip_unless_runs(local, target_of(intrin))
                return local
            cpu = next(
                cpu for has, cpu in CPUS[arch] if features <= {"neon", *has} or has & features
            )
            if cpu not in sessions:
                sessions[cpu] = stack.enter_context(mlc.connect(f"qemu://{cpu}", machine=arch))
            return sessions[cpu]

        yield board


def data_for(intrin: TensorIntrin, seed: int) -> Arrays:
    """Whole ranges of integers, a third of them extreme; floats about 1, some of them 0."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = []
    for b in program_of(intrin).buffers:
        shape = tuple(int(n) for n in b.shape)  # type: ignore[arg-type]
        if b.dtype.startswith("float"):
            values: NDArray[Any] = rng.standard_normal(shape)
            few: NDArray[Any] = np.array([0.0, 1.0, -1.0])
        else:
            low, high = intrin.domains.get(b.name, value_range(b.dtype))
            values = rng.integers(int(low), int(high), shape, endpoint=True)
            few = np.array([low, high, 0, 1, max(int(low), -1)])
        extreme = rng.random(shape) < (1 / 3 if seed else 1)
        arrays.append(
            np.where(extreme, rng.choice(few, shape), values).astype(numpy_dtype(b.dtype))
        )
    return arrays


def check(intrin: TensorIntrin, seed: int, call: Callable[[Arrays], NDArray[Any]]) -> None:
    """`call` returns what C holds after the implementation has run on copies of the arrays."""
    given = data_for(intrin, seed)
    expected = [a.copy() for a in given]
    run(program_of(intrin), *expected)
    actual, wanted = call(given), expected[-1]
    assert actual.shape == wanted.shape
    if wanted.dtype.kind == "f":
        scale = 2e-3 if wanted.dtype == np.float16 else 2e-6
        np.testing.assert_allclose(actual, wanted, scale, scale * float(np.abs(wanted).max()))
    else:
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize(
    "intrin",
    [i for i in INTRINS if "arm" not in i.features or not needs_v8(i)],
    ids=lambda i: i.name,
)
def test_implementation_computes_its_description(
    intrin: TensorIntrin, folder: Path, boards: Callable[[TensorIntrin], Session]
) -> None:
    board = boards(intrin)
    module = board.load((folder / f"{intrin.name}.o").read_bytes())

    def call(given: Arrays) -> NDArray[Any]:
        tensors = [board.tensor(a) for a in given]
        module["kernel"](*tensors)
        return tensors[-1].numpy()

    for seed in range(ROUNDS):
        check(intrin, seed, call)
    module.close()


@pytest.mark.parametrize(
    "intrin", [i for i in INTRINS if "arm" in i.features and needs_v8(i)], ids=lambda i: i.name
)
def test_implementation_of_armv8_computes_its_description(
    intrin: TensorIntrin, folder: Path
) -> None:
    """Loaded without the check of CPU features: QEMU 7.2's 32-bit `max` has these instructions,
    but does not tell (HWCAP), so that a board there refuses what needs them."""
    func = program_of(intrin)
    offsets, end = offsets_of(func)

    def call(given: Arrays) -> NDArray[Any]:
        memory = bytearray(end)
        for offset, array in zip(offsets, given, strict=True):
            memory[offset : offset + array.nbytes] = array.tobytes()
        c = given[-1]
        path = folder / f"{intrin.name}.o"
        result = run_driver("arm", path, "driver", str(c.nbytes), stdin=bytes(memory), cpu="max")
        assert (result.returncode, result.stderr) == (0, b"")
        return np.frombuffer(result.stdout, c.dtype).reshape(c.shape)

    for seed in range(2):
        check(intrin, seed, call)


@pytest.mark.parametrize("intrin", INTRINS, ids=lambda i: i.name)
def test_assembly_has_the_instruction(intrin: TensorIntrin, folder: Path) -> None:
    assembly = (folder / f"{intrin.name}.s").read_text()
    assert intrin.instruction and re.search(intrin.instruction, assembly), assembly


@pytest.mark.parametrize("intrin", [i for i in INTRINS if i.calls], ids=lambda i: i.name)
def test_what_its_calls_need_is_known(intrin: TensorIntrin) -> None:
    """So that code generation refuses a target that lacks it: LLVM would end the process."""
    ((arch, features),) = intrin.features.items()
    for call in intrin.calls:
        needed = features_for(call)
        assert needed is not None and needed <= features
        assert needed or not call.startswith(f"llvm.{arch}."), f"every CPU would have {call}"


def test_refusals(golden: Callable[..., None]) -> None:
    """Targets that lack what an intrinsic of LLVM needs, or that nothing is known about."""
    texts = []
    for name, target in (
        ("aarch64.sdot", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"),
        ("aarch64.usmmla", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76"),
        ("aarch64.smull.int16", "armv7a"),
        ("arm.vsdot", "armv7a"),
        ("arm.vqrdmulh.s32", "llvm -mtriple=armv7a-linux-gnueabihf -device=arm_cpu"),
        ("arm.vmull.s8", "x86_64"),
        ("x86.pmaddwd.8", "x86_64"),
    ):
        sch = mlc.Schedule(program_of(next(i for i in INTRINS if i.name == name)))
        sch.tensorize(sch.get_loops("C")[0], name)
        with pytest.raises(mlc.CodegenError) as error:
            _ = mlc.build(sch, target=target).llvm_ir
        texts.append(f"{name} for {target}\n{error.value}")
    golden("\n\n".join(texts), "intrinsic_refusals")


def test_the_required_ones_are_there() -> None:
    """What the engine promises, by the beginning of their names."""
    wanted = (
        "aarch64.sdot aarch64.udot aarch64.usdot aarch64.smmla aarch64.ummla aarch64.usmmla "
        "aarch64.smull aarch64.umull aarch64.saddlp aarch64.uaddlp aarch64.addp aarch64.sqrdmulh "
        "aarch64.srshl aarch64.fmla.lane.float32 aarch64.fmla.lane.float16 aarch64.fmla.float16 "
        "arm.vpadd arm.vpadal.s arm.vpadal.u arm.vmull.s8 arm.vmull.u8 arm.vmlal arm.vqrdmulh "
        "arm.vrshl arm.vfma arm.vmla.lane arm.vsdot arm.vudot arm.vsmmla"
    )
    names = [i.name for i in INTRINS]
    assert [w for w in wanted.split() if not any(n.startswith(w) for n in names)] == []


def test_c_source_says_that_it_has_no_such_instruction() -> None:
    intrin = next(i for i in INTRINS if i.name == "aarch64.sdot.lane")
    sch = mlc.Schedule(program_of(intrin))
    sch.tensorize(sch.get_loops("C")[0], intrin.name)
    with pytest.raises(mlc.CodegenError, match="sdot"):
        mlc.build(sch, target=Target("c")).save("unused.c")
