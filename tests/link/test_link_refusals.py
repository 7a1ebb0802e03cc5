"""What is not linked, and what is said; and objects of any bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen.link import LinkedObject, link, undefined
from mlc_deploy.driver.linked import linked_objects
from mlc_deploy.errors import CodegenError, MlcError
from mlc_rpc.errors import RpcError
from mlc_targets import Target
from tests.link.programs import SOURCE, mix, object_of, target_of

Golden = Callable[..., None]

SOURCES = {
    "thread-local": "_Thread_local int count; int own_mix(void) { return ++count; }",
    "begins before main": "volatile int n; __attribute__((constructor)) void f(void) { n++; }",
    "kernel's name": "int mix(void) { return 1; }",
    "the C library's name": "float expf(float x) { return x; }",
    "twice": "int own_mix(void) { return 1; }",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refused")


def said(work: Callable[[], object], folder: Path) -> str:
    with pytest.raises((MlcError, RpcError, TypeError)) as refusal:
        work()
    return str(refusal.value).replace(str(folder), "FOLDER")


def built(machine: str, *files: Path | str) -> bytes:
    return mlc.build(mix(), target=target_of(machine), name="mix", link=files).object_bytes


def test_refusals(folder: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    own = object_of("x86_64", folder)
    told = []
    for name, text in SOURCES.items():
        file = folder / f"{name.replace(' ', '_').replace(chr(39), '')}.c"
        file.write_text(text)
        made = object_of("x86_64", folder, source=file)
        told.append((name, said(partial(built, "x86_64", own, made), folder)))
    (folder / "text.o").write_text("no object")
    (folder / "cut.o").write_bytes(own.read_bytes()[:200])
    (folder / "wrong.c").write_text("int own_mix(void) { return nothing; }")
    fast = ("-mcpu=cortex_a15",)
    soft_o = object_of("arm", folder, "-target", "arm-linux-musleabi", "-mcpu=generic+v7a+neon")
    cases = {
        "another machine": lambda: built("arm", own),
        "text": lambda: built("x86_64", folder / "text.o"),
        "cut off": lambda: built("x86_64", folder / "cut.o"),
        "missing": lambda: built("x86_64", folder / "nowhere.o"),
        "an archive": lambda: built("x86_64", folder / "lib.a"),
        "soft floats": lambda: built("arm", soft_o),
        "what the CPU lacks": lambda: built("arm", object_of("arm", folder, *fast)),
        "a microcontroller": lambda: built(
            "arm", object_of("arm", folder, "-target", "thumb-freestanding-eabihf",
                             "-mcpu=cortex_m7", source=plain(folder))
        ),
    }  # fmt: skip
    told += [(name, said(work, folder)) for name, work in cases.items()]
    monkeypatch.setenv("MLC_CC", "nowhere-cc")
    told.append(
        ("a compiler that is not there", said(lambda: built("x86_64", SOURCE), SOURCE.parent))
    )
    monkeypatch.delenv("MLC_CC")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told.append(("no compiler", said(lambda: built("arm", SOURCE), SOURCE.parent)))
    golden("\n\n".join(f"# {name}\n{text}" for name, text in told), "link_refusals")


def plain(folder: Path) -> Path:
    file = folder / "plain.c"
    file.write_text("int own_mix(void) { return 1; }")
    return file


def test_c_that_does_not_compile_is_shown(folder: Path) -> None:
    file = folder / "bad.c"
    file.write_text("int own_mix(void) { return nothing; }")
    with pytest.raises(CodegenError, match=r"(?s)does not compile bad.c.*nothing"):
        linked_objects([file], Target("host"))


def test_calls_that_are_refused(golden: Golden) -> None:
    a = te.placeholder((4,), name="a")
    small = te.placeholder((4,), "int8", "small")
    cases: dict[str, Callable[[], object]] = {
        "a name": lambda: te.call_extern("int32", "no name", a),
        "a result": lambda: te.call_extern("float16", "f", a),
        "a small number": lambda: te.call_extern("int32", "f", small[0]),
        "an address of a value": lambda: te.address_of(a[0] + 1),
        "no call": lambda: te.extern((4,), [a], lambda ins, outs: ins[0][0]),
        "no dtype": lambda: te.extern((4,), [a, small], lambda ins, outs: None),
        "two types": lambda: mlc.build(
            [a, te.compute((4,), lambda i: te.call_extern("float32", "f", a[i])
                           + te.call_extern("float32", "f", i), name="c")], target="host"
        ).object_bytes,
    }  # fmt: skip
    golden(
        "\n\n".join(f"# {name}\n{said(work, Path('/'))}" for name, work in cases.items()),
        "extern_refusals",
    )


def test_undefined_functions_are_named_by_the_board() -> None:
    lib = mlc.build(mix(), target="host", name="mix")
    assert "own_mix" in undefined(lib.object_bytes)
    with (
        mlc.connect("local://") as board,
        pytest.raises(RpcError, match="undefined symbol 'own_mix'"),
    ):
        board.load(lib)


@pytest.mark.parametrize("machine", ["arm", "aarch64", "x86_64"])
def test_objects_of_any_bytes_are_refused_or_linked(machine: str, folder: Path) -> None:
    """Nothing else is raised; what is linked is read again."""
    kernels = mlc.build(mix(), target=target_of(machine), name="mix").object_bytes
    code = object_of(machine, folder).read_bytes()
    draw, linked, refused = random.Random(7), 0, 0
    for _ in range(400):
        changed = bytearray(code)
        for _ in range(draw.choice((1, 2, 8))):
            changed[draw.randrange(len(changed))] = draw.choice(
                (0, 1, 127, 255, draw.randrange(256))
            )
        end = draw.choice((len(changed), draw.randrange(len(changed))))
        try:
            whole = link(kernels, [LinkedObject("own.o", bytes(changed[:end]))])
        except CodegenError:
            refused += 1
        else:
            undefined(whole)
            linked += 1
    assert linked > 20 and refused > 20
