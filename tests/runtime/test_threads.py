"""Tasks that several threads share: the same bits, the same reports, nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.board.runtime_files import MACHINES, runtime_file
from mlc_deploy.graph import BlockBuilder, Constant, Function, Value, evaluate
from mlc_deploy.graph.lower import lower_kernel
from mlc_deploy.ir import For, PrimFunc, walk
from mlc_deploy.lower import KEPT
from mlc_rpc.cores import ranges
from mlc_rpc.errors import Refused
from mlc_rpc.wire import MAX_THREADS
from tests.artifact.models import digits, images
from tests.runtime.board import BODIES, BYTES, SIGNATURES, Board, module_of, param, refused

TARGETS = {"x86_64": "x86_64", "aarch64": "aarch64", "arm": "armv7a"}
URLS = {"x86_64": "local://", "aarch64": "qemu://max", "arm": "qemu://max"}
COUNTS = range(1, 9)

# Each of the four tasks goes on when all four have begun, which four threads alone can bring about;
# then, or instead, the last one does something.
_MEET = """
  %old = atomicrmw add ptr %p0, i32 1 seq_cst
  br label %wait
wait:
  %now = load atomic i32, ptr %p0 seq_cst, align 4
  %all = icmp sge i32 %now, 4
  br i1 %all, label %met, label %wait
met:
"""
_LAST = "%last = icmp eq i32 %begin, 3\nbr i1 %last, label %special, label %fine\n"
_FINE = "fine:\nret i32 0\nspecial:\n"
THREADED = {
    "meet": _MEET + "ret i32 0",
    "meet_wild": _MEET + _LAST + _FINE + "store volatile i8 1, ptr inttoptr (i64 16 to ptr)\n"
    "ret i32 0",
    "meet_stuck": _MEET + _LAST + _FINE + "br label %on\non:\nstore volatile i8 1, ptr %p0\n"
    "br label %on",
    "meet_status": _MEET + _LAST + _FINE + "ret i32 1",
    "meet_workspace": "%w = getelementptr ptr, ptr %args, i32 2\n%wp = load ptr, ptr %w\n"
    "%end8 = getelementptr i8, ptr %wp, i32 4992\nstore volatile i32 %begin, ptr %wp\n"
    "store volatile i32 %begin, ptr %end8\n" + _MEET + "%own = load volatile i32, ptr %wp\n"
    "%own8 = load volatile i32, ptr %end8\n%sum = add i32 %own, %own8\n"
    "%to = getelementptr i32, ptr %p1, i32 %begin\nstore i32 %sum, ptr %to\nret i32 0",
}  # fmt: skip
COUNTER = param("counter", "int32", [1], output=True)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in THREADED.items():
        monkeypatch.setitem(BODIES, name, (2 if name == "meet_workspace" else 1, body))
        monkeypatch.setitem(SIGNATURES, name, {"params": [COUNTER], "tasks": 4})
    sums = param("sums", "int32", [4], output=True)
    said = {"params": [COUNTER, sums], "tasks": 4, "workspace": 4996}
    monkeypatch.setitem(SIGNATURES, "meet_workspace", said)


def counter(board: Board) -> int:
    return board.tensor(np.zeros(1, np.int32))


# ---- The same bits ----


def pointwise() -> PrimFunc:
    a = te.placeholder((61, 67, 5), name="a")
    return te.create_prim_func([a, te.compute(a.shape, lambda *i: te.exp(a[i]) * a[i], name="b")])


def softmax_like() -> PrimFunc:
    """A reduction, and a pass over what it was made of; one scratch row per task."""
    a = te.placeholder((70, 301), name="a")
    k, m = (te.reduce_axis((0, 301), n) for n in ("k", "m"))
    raised = te.compute(a.shape, lambda i, j: te.exp(a[i, j]), name="raised")
    total = te.compute((70,), lambda i: te.sum(raised[i, k], k), name="total")
    share = te.compute(a.shape, lambda i, j: raised[i, j] / total[i], name="share")
    spread = te.compute((70,), lambda i: te.sum(share[i, m] * share[i, m], m), name="spread")
    sch = mlc.Schedule(te.create_prim_func([a, spread]))
    row = sch.get_loops("spread")[0]
    for block in ("share", "total", "raised"):
        sch.compute_at(block, row)
    sch.parallel(row)
    return sch.func


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("program", [pointwise, softmax_like])
def test_kernels_give_the_same_bits(machine: str, program: object) -> None:
    func = program()  # type: ignore[operator]
    library = mlc.build(func, target=mlc.Target(TARGETS[machine]), name="f")
    a, b = func.buffers
    x = np.random.default_rng(0).normal(size=a.shape).astype(np.float32)
    with mlc.connect(URLS[machine], machine=machine) as board:
        module = board.load(library)
        assert int(module.metadata.kernels["f"].tasks) >= 61
        if program is softmax_like:
            assert module.metadata.kernels["f"].workspace > 0
        given, got = board.tensor(x), board.empty(b.shape, b.dtype)
        results = []
        for threads in (*COUNTS, 3, 1):
            got.write(np.full(b.shape, np.nan, np.float32))
            module["f"](given, got, threads=threads)
            results.append(got.numpy().tobytes())
    assert len(set(results)) == 1
    assert np.isfinite(np.frombuffer(results[0], np.float32)).all()


@pytest.mark.parametrize("machine", MACHINES)
def test_models_give_the_same_bits(machine: str) -> None:
    with mlc.connect(URLS[machine], machine=machine) as board:
        module = board.load(digits(machine))
        (name,) = (p.name for p in module.model.inputs)
        given = {name: images()}
        results = {
            array.tobytes()
            for threads in (*COUNTS, 1)
            for array in module.run(given, threads=threads).values()
        }
    assert len(results) == 1


def convolutions() -> Function:
    """Of one strip of rows each, by Winograd's filtering and with strides: groups of output
    channels are tasks, and share the data that a thread makes."""
    draw, builder = np.random.default_rng(5), BlockBuilder("convolutions")
    y: Value = builder.param("x", (1, 32, 14, 14), "float32")
    for channels, stride in ((32, 1), (128, 2)):
        w = draw.standard_normal((128, channels, 3, 3)).astype(np.float32) / 20
        strides = (stride, stride)
        window: dict[str, Any] = {"strides": strides, "dilations": (1, 1), "pads": (1, 1, 1, 1)}
        y = builder.emit("relu", builder.emit("conv2d", y, Constant(w, "w"), groups=1, **window))
    return builder.finish([y], ["y"])


@pytest.mark.parametrize("machine", MACHINES)
def test_data_that_tasks_of_a_strip_share(machine: str) -> None:
    function = convolutions()
    model = mlc.compile(function, TARGETS[machine])
    x = np.random.default_rng(6).standard_normal((1, 32, 14, 14)).astype(np.float32)
    with mlc.connect(URLS[machine], machine=machine) as board:
        module = board.load(model)
        results = [module.run({"x": x}, threads=n)["y"] for n in (*COUNTS, 1)]
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], evaluate(function, {"x": x})["y"], atol=1e-4)


def test_tasks_share_the_data_of_a_strip() -> None:
    """On AArch64 both convolutions above are such: their one strip serves four tasks."""
    target = mlc.Target(TARGETS["aarch64"])
    sources = mlc.compile(convolutions(), target).program.kernels.values()
    loops = [n for source in sources for n in walk(lower_kernel(source, target).body)]
    served = [n.annotations[KEPT] for n in loops if isinstance(n, For) and KEPT in n.annotations]
    assert served == [4, 4]


def test_a_board_without_a_laptop(tmp_path: Path) -> None:
    digits().save(tmp_path / "digits.mlc")
    np.save(tmp_path / "image.npy", images())
    written = set()
    for given in ([], ["--threads", "1"], ["--threads", "3"], ["--threads", "8"]):
        command = [str(runtime_file("x86_64")), "run", "digits.mlc", "--input", "image.npy", *given]
        ended = subprocess.run(
            [*command, "--output", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        written.add((tmp_path / "out" / "probability.npy").read_bytes())
    assert len(written) == 1


# ---- Threads at work ----


@pytest.mark.parametrize("machine", MACHINES)
def test_tasks_run_at_once_with_a_workspace_each(machine: str) -> None:
    with Board(machine) as board:
        module = board.load(module_of("meet", "meet_workspace", machine=machine))["module"]
        for _ in range(3):
            board.call("run", module, "meet", [counter(board)], {"threads": 4, "timeout_ms": 60000})
        sums = np.zeros(4, np.int32)
        to = board.tensor(sums)
        options = {"threads": 4, "timeout_ms": 60000}
        board.call("run", module, "meet_workspace", [counter(board), to], options)
        np.testing.assert_array_equal(board.numpy(to, sums), [0, 2, 4, 6])


@pytest.mark.parametrize("machine", MACHINES)
def test_when_threads_were_at_work(machine: str) -> None:
    """Four that wait for each other were at work at one time, each once."""
    with Board(machine) as board:
        module = board.load(module_of("meet", "count", machine=machine))["module"]
        options = {"threads": 4, "timeout_ms": 60000, "spans": True}
        answer = board.call("run", module, "meet", [counter(board)], options)
        spans = answer["spans"]
        assert sorted((call, thread) for call, thread, *_ in spans) == [(0, n) for n in range(4)]
        begins, ends = zip(*((begin, begin + took) for *_, begin, took in spans), strict=True)
        assert max(begins) <= min(ends) and max(ends) <= answer["nanoseconds"][0] + begins[0]
        alone = board.call("run", module, "count", [counter(board)], {"spans": True})["spans"]
        assert [row[:2] for row in alone] == [[0, 0]]
        assert "spans" not in board.call("run", module, "count", [counter(board)], {})
        assert (
            "no option 'spans'"
            in refused(board, "time", module, "count", [counter(board)], {"spans": True}).text
        )


def test_spans_of_a_model() -> None:
    """In the order of its calls, one after the other; and nothing else of the run changes."""
    with mlc.connect("qemu://max", machine="aarch64") as board:
        module = board.load(digits("aarch64"))
        args = [board.tensor(images()), board.empty((16, 10))]
        plain = module.entry.profile(*args)
        told = module.entry.profile(*args, spans=True)
    assert plain.spans == () and told.counts == plain.counts
    assert [(call, thread) for call, thread, *_ in told.spans] == [(n, 0) for n in range(7)]
    for (*_, begin, took), (*_, after, _) in pairwise(told.spans):
        assert 0 <= begin and begin + took <= after


def test_threads_are_kept() -> None:
    """They are made once, sleep while nothing runs, and are not used unless asked for."""
    with Board() as board:
        module = board.load(module_of("meet", "count"))["module"]
        tasks = Path("/proc", str(board.children()[0]), "task")
        board.call("run", module, "count", [counter(board)], {})
        assert len(os.listdir(tasks)) == 1
        for threads in (4, 4, 7, 4):
            board.call("run", module, "meet", [counter(board)], {"threads": threads})
        assert len(os.listdir(tasks)) == 7
        late = time.monotonic() + 60
        while any(state(tasks / thread) != "S" for thread in os.listdir(tasks)):
            assert time.monotonic() < late, "a thread does not sleep"


def state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(") ")[2][0]


ALLOWED = sorted(os.sched_getaffinity(0))


def of_two_kinds(fastest: int, others: int, folder: Path) -> Board:
    """A board whose first core is the fastest; it is QEMU that shows it other files."""
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("no QEMU here: apt install qemu-user")
    for core in ALLOWED:
        place = folder / "sys" / "devices" / "system" / "cpu" / f"cpu{core}"
        place.mkdir(parents=True)
        if fastest:
            (place / "cpu_capacity").write_text(f"{fastest if core == ALLOWED[0] else others}\n")
    return Board("aarch64", qemu=("-L", str(folder)))


@pytest.mark.parametrize("fastest, others, fast", [(1024, 430, 1), (1024, 871, 64), (0, 0, 64)])
def test_fast_cores_are_told_apart(fastest: int, others: int, fast: int, tmp_path: Path) -> None:
    """By what the kernel says of them."""
    with of_two_kinds(fastest, others, tmp_path) as board:
        said = board.call("describe")
        assert said["cores"] == len(ALLOWED)
        assert said["fast_cores"] == min(fast, len(ALLOWED))
        assert said["slow_cores"] == (ALLOWED[1:] if fast == 1 else [])
        module = board.load(module_of("meet", machine="aarch64"))["module"]
        board.call("run", module, "meet", [counter(board)], {"threads": 4, "timeout_ms": 60000})


def cores_of(board: Board, module: int, **options: object) -> object:
    given = {"number": 1, "timeout_ms": 60000, **options}
    return board.call("time", module, "count", [counter(board)], given)["cores"]


def test_cores_are_chosen(tmp_path: Path) -> None:
    """Again and again in one worker, and with threads that are there already."""
    first, last = ALLOWED[0], ALLOWED[-1]
    if first == last:
        pytest.skip("this machine has one core")
    with of_two_kinds(1024, 430, tmp_path) as board:
        module = board.load(module_of("count", machine="aarch64"))["module"]
        assert cores_of(board, module) == [first]
        assert cores_of(board, module, cores="slow") == ALLOWED[1:]
        assert cores_of(board, module, cores="fast", threads=2) == [first]
        assert cores_of(board, module, threads=2) == ALLOWED
        assert cores_of(board, module, cores=f"{last}") == [last]
        assert cores_of(board, module, cores=f"{last},{first}-{first}") == [first, last]
        assert cores_of(board, module, cores="") == [first]


def test_threads_move_to_the_cores_that_are_named() -> None:
    last = ALLOWED[-1]
    with Board() as board:
        module = board.load(module_of("meet"))["module"]
        for options, cores in (({}, ALLOWED), ({"cores": str(last)}, [last]), ({}, ALLOWED)):
            board.call("run", module, "meet", [counter(board)], {"threads": 4, **options})
            for thread in os.listdir(f"/proc/{board.children()[0]}/task"):
                assert sorted(os.sched_getaffinity(int(thread))) == cores


NO_CORES = {
    "slow": "the board has no slow cores, or its kernel does not tell which they are; try: cores "
    "by number, such as 0-3",
    "all": "cores are 'fast', 'slow', or numbers such as 0-3 or 4,5, not 'all'",
    "3-1": "cores are 'fast', 'slow', or numbers such as 0-3 or 4,5, not '3-1'",
    "1-": "cores are 'fast', 'slow', or numbers such as 0-3 or 4,5, not '1-'",
    "0x": "cores are 'fast', 'slow', or numbers such as 0-3 or 4,5, not '0x'",
    "1000": f"core 1000 is not here, or not for this program to use; try: of {ranges(ALLOWED)}",
    "0," * 32: "run: cores are named in less than 64 letters",
}


@pytest.mark.parametrize("cores", NO_CORES)
def test_cores_that_are_none(cores: str) -> None:
    with Board() as board:
        if cores == "slow" and board.call("describe")["slow_cores"]:
            pytest.skip("this machine has slow cores")
        module = board.load(module_of("count"))["module"]
        error = refused(board, "run", module, "count", [counter(board)], {"cores": cores})
    assert (error.kind, error.text) == ("refused", NO_CORES[cores])


# ---- What goes wrong ----


@pytest.mark.parametrize("machine", MACHINES)
def test_a_crash_in_a_thread_names_the_kernel(machine: str) -> None:
    with Board(machine) as board:
        module = board.load(module_of("meet_wild", "meet", machine=machine))["module"]
        for _ in range(3):
            error = refused(board, "run", module, "meet_wild", [counter(board)], {"threads": 4})
            assert error.kind == "crashed"
            assert error.details["signal"] == "SIGSEGV" and error.details["kernel"] == "meet_wild"
            board.call("run", module, "meet", [counter(board)], {"threads": 4})
        if machine == "x86_64":
            assert len(board.children()) == 1


def test_a_thread_that_hangs_is_late() -> None:
    with Board() as board:
        module = board.load(module_of("meet_stuck", "meet"))["module"]
        options = {"threads": 4, "timeout_ms": 300}
        error = refused(board, "run", module, "meet_stuck", [counter(board)], options)
        assert error.kind == "timeout" and error.details["kernel"] == "meet_stuck"
        board.call("run", module, "meet", [counter(board)], {"threads": 4})


@pytest.mark.parametrize("machine", MACHINES)
def test_a_status_of_a_thread_is_the_call_s(machine: str) -> None:
    with Board(machine) as board:
        module = board.load(module_of("meet_status", "meet", machine=machine))["module"]
        for _ in range(3):
            error = refused(board, "run", module, "meet_status", [counter(board)], {"threads": 4})
            assert error.kind == "crashed" and "returned status 1" in error.text
            board.call("run", module, "meet", [counter(board)], {"threads": 4})


@pytest.mark.parametrize("threads", [0, MAX_THREADS + 1])
def test_a_number_of_threads_that_is_none(threads: int) -> None:
    with Board() as board:
        module = board.load(module_of("count"))["module"]
        error = refused(board, "run", module, "count", [board.tensor(BYTES)], {"threads": threads})
    assert error.kind == "refused"
    assert error.text == f"run: threads = {threads}, which must be 1 to {MAX_THREADS}"


# ---- Counting ----


def test_counts_are_of_one_thread() -> None:
    """Threads that other runs made do not show in them."""
    library = mlc.build(pointwise(), target=mlc.Target("aarch64"), name="f")
    x = np.ones((61, 67, 5), np.float32)
    with mlc.connect("qemu://max", machine="aarch64") as board:
        if not board.counting:
            pytest.skip(f"instructions are not counted here: {board.why_not_counting}")
        f = board.load(library)["f"]
        args = board.tensor(x), board.empty(x.shape)
        before = f.profile(*args).counts
        several = f.profile(*args, threads=4)
        assert several.counts is None and several.nanoseconds[0] > 0
        assert f.profile(*args).counts == before
        with pytest.raises(Refused, match="instructions are counted on 1 thread, not on 2"):
            f._run(args, {"threads": 2, "mark": True}, 10.0)
