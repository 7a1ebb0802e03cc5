"""Files of torch.export that run code where torch alone reads them, and do not here."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --only torch")

from torch import nn  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.errors import ImporterError  # noqa: E402
from mlc_deploy.frontend import from_torch  # noqa: E402
from mlc_deploy.graph import evaluate  # noqa: E402
from tests.cli.command import Command  # noqa: E402
from tests.frontend import pt2_files as pt2  # noqa: E402
from tests.frontend.torch_programs import MODULES  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),  # torch's own
]

# What torch's reader does not run by itself, though nothing keeps it from doing so.
INERT = {
    "operator on files", "loader of libraries", "custom object", "what torch may come to have",
    "name of a parameter", "library", "higher order", "function as an operand", "function",
    "keyword", "size in a symbol",
}  # fmt: skip


def refusal(file: Path) -> str:
    with pytest.raises(ImporterError) as error:
        from_torch(file)
    return str(error.value)


def by_torch(file: Path) -> None:
    """What reading the file was before: whatever comes of it."""
    try:
        torch.export.load(file).run_decompositions()
    except Exception:
        pass


@pytest.mark.parametrize("name", pt2.hostile(Path("/nowhere")))
def test_nothing_runs(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    (tmp_path / f"{pt2.IMPORTED}.py").write_text(pt2.code(marker))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, pt2.IMPORTED, raising=False)
    content, said = pt2.hostile(marker)[name]
    file = pt2.write(tmp_path / "m.pt2", content)
    assert said in refusal(file)
    assert not marker.exists()
    by_torch(file)
    assert marker.exists() or name in INERT, "the file is as hostile as it says"


def pickles(marker: Path) -> dict[str, pt2.Entries]:
    """Files with a pickle in place of tensors, by the entry that it is in."""
    saved = io.BytesIO()
    torch.save(((pt2.Runs(marker),), {}), saved)
    names = {
        pt2.SAMPLES: saved.getvalue(),
        "data/weights/model.pt": saved.getvalue(),
        "data/constants/model.pt": pt2.bare_pickle(marker),
    }
    return {name: pt2.relu() | {name: content} for name, content in names.items()}


@pytest.mark.parametrize("entry", pickles(Path("/nowhere")))
def test_a_pickle_in_place_of_tensors(
    tmp_path: Path, entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "marker"
    file = pt2.write(tmp_path / "m.pt2", pickles(marker)[entry])
    assert refusal(file) == (
        "it is a pickle of more than tensors, which runs code when it is read\n"
        f"  in:  {file}, entry '{entry}'\n"
        "  try: --trust, or trust=True, for a file whose author may run code on this machine"
    )
    for command in ("inspect", "run"):
        more = ("--board", "none", "--target", "aarch64") if command == "run" else ()
        done = Command(capsys)(command, file, *more)
        assert done.status == 1 and "which runs code when it is read" in done.stderr
    assert not marker.exists()
    by_torch(file)
    assert marker.exists()


def test_a_file_that_is_trusted_may_run_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "marker"
    file = pt2.write(tmp_path / "m.pt2", pickles(marker)[pt2.SAMPLES])
    compiled = mlc.compile(file, "aarch64", trust=True)
    assert marker.exists() and compiled.name == "m"
    marker.unlink()
    done = Command(capsys)("inspect", file, "--trust")
    assert done.status == 0 and marker.exists()


def test_files_by_hand_are_as_torch_reads_them(tmp_path: Path) -> None:
    graph = from_torch(pt2.write(tmp_path / "m.pt2", pt2.relu()))
    (found,) = evaluate(graph, [np.array([-1, 0, 2], np.float32)]).values()
    np.testing.assert_array_equal(found, [0, 0, 2])


def test_saved_programs_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "m.pt2"
    for name, (module, tensors) in list(MODULES.items())[::7]:
        program = torch.export.export(module.eval(), tensors)
        torch.export.save(program, file)
        ours, theirs = from_torch(file), from_torch(program)
        assert ours.script() == theirs.script(), name


def test_dynamic_sizes_names_and_no_grad(tmp_path: Path) -> None:
    class Module(nn.Module):
        def forward(self, x: Any, *, scale: Any) -> Any:
            with torch.no_grad():
                y = nn.functional.gelu(x, approximate="tanh")
            n = x.shape[0]
            return {"a-b": (y * scale).reshape(n * 2, -1), "c": [y, x.new_zeros(n // 2 + 1)]}

    n = torch.export.Dim("n", min=2, max=64)
    x = torch.arange(24.0).reshape(4, 6)
    program = torch.export.export(
        Module(), (x,), {"scale": torch.ones(1)}, dynamic_shapes={"x": {0: n}, "scale": None}
    )
    torch.export.save(program, tmp_path / "m.pt2")
    graph = from_torch(tmp_path / "m.pt2", {"x": (6, 6)})
    assert graph.output_names == ("a-b", "c_0", "c_1")
    assert graph.outputs[0].type.sizes == (12, 3)
    with pytest.raises(ImporterError, match="--shape x=4,6"):  # known of the sample inputs
        from_torch(tmp_path / "m.pt2")


def test_the_form_of_torch_2_7(tmp_path: Path) -> None:
    from torch._export.serde.serialize import serialize

    module = nn.Linear(3, 2).eval()
    artifact = serialize(torch.export.export(module, (torch.ones(1, 3),)))
    content = {
        "version": b"8.8",
        "serialized_exported_program.json": artifact.exported_program,
        "serialized_state_dict.pt": artifact.state_dict,
        "serialized_constants.pt": artifact.constants,
        "serialized_example_inputs.pt": artifact.example_inputs,
    }
    file = pt2.write(tmp_path / "m.pt2", content, root="")
    assert [p.name for p in from_torch(file).params] == ["input"]
    for entry in list(content)[2:]:
        marker = tmp_path / "marker"
        pt2.write(file, content | {entry: pt2.bare_pickle(marker)}, root="")
        assert f"entry '{entry}'" in refusal(file) and not marker.exists()


def test_what_torch_cannot_read_is_said_with_its_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(program: Any) -> None:
        pt2.graph(program)["outputs"] = [{"as_tensor": {"name": "nowhere"}}]

    file = pt2.write(tmp_path / "m.pt2", pt2.edited(pt2.relu(), pt2.MODEL, broken))
    text = refusal(file)
    assert text.startswith("torch cannot read the program: ")
    pt2.write(file, pt2.relu() | {"archive_version": b"77"})
    assert "77" in refusal(file)
    assert "Traceback" not in capfd.readouterr().err


def test_damaged_entries(tmp_path: Path) -> None:
    """Only refusals, whatever the bytes of the program are."""
    import random

    draw = random.Random(3)
    file, program = tmp_path / "m.pt2", pt2.relu()[pt2.MODEL]
    for _ in range(60):
        data = bytearray(program)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.choice(b'0179"[]{}:,aex-')
        pt2.write(file, pt2.relu() | {pt2.MODEL: bytes(data)})
        try:
            from_torch(file)
        except ImporterError:
            pass
