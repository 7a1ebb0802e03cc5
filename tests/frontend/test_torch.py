"""PyTorch programs: every operator's graph against torch itself, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --only torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils import _pytree  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.errors import ImporterError  # noqa: E402
from mlc_deploy.frontend import from_torch  # noqa: E402
from mlc_deploy.graph import Constant, evaluate  # noqa: E402
from tests.frontend.torch_programs import MODULES, PROGRAMS  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),  # torch's own
]


class Calling(nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def exported(function: Callable[..., Any], *tensors: Any, **options: Any) -> Any:
    module = function if isinstance(function, nn.Module) else Calling(function)
    return torch.export.export(module.eval(), tensors, **options)


def agrees(module: nn.Module, tensors: tuple[Any, ...]) -> None:
    with torch.no_grad():
        expected = [t.numpy() for t in _pytree.tree_leaves(module.eval()(*tensors))]
    graph = from_torch(exported(module, *tensors))
    found = list(evaluate(graph, [t.numpy() for t in tensors]).values())
    assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_operator(name: str) -> None:
    function, tensors = PROGRAMS[name]
    agrees(Calling(function), tensors)


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    module, tensors = MODULES[name]
    agrees(copy.deepcopy(module), tensors)


def test_weights_are_not_copied() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 5))
    graph = from_torch(exported(module, torch.zeros(1, 3, 4, 4)))
    found = {
        a.name: a.value for b in graph.bindings for a in b.call.args if isinstance(a, Constant)
    }
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            stored = found[f"p_{name.replace('.', '_')}"]
            assert np.shares_memory(stored, parameter.detach().numpy()), name


def test_layers_carry_the_modules_names() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.ReLU()))
    graph = from_torch(exported(module, torch.zeros(2, 5)))
    assert {b.source for b in graph.bindings} == {"0.linear", "1.0.relu"}


def test_names_of_outputs() -> None:
    def several(x: Any) -> Any:
        return {"logits": x + 1, "hidden": (x + 2, x + 3)}

    x = torch.zeros(2)
    assert from_torch(exported(several, x)).output_names == ("logits", "hidden_0", "hidden_1")
    assert from_torch(exported(lambda x: (x + 1, x + 2), x)).output_names == (
        "output_0",
        "output_1",
    )
    assert from_torch(exported(lambda x: x + 1, x)).output_names == ("output",)


def test_an_input_is_an_output_and_another_is_not_read() -> None:
    graph = from_torch(exported(lambda x, y: (x, x + 1), torch.ones(2), torch.ones(3)))
    found = evaluate(graph, [np.ones(2, np.float32), np.ones(3, np.float32)])
    np.testing.assert_array_equal(found["output_0"], [1, 1])
    np.testing.assert_array_equal(found["output_1"], [2, 2])


def test_what_only_assertions_read_is_left_out() -> None:
    """A number of the data that a check reads, which nothing else could be computed from."""

    def checked(x: Any) -> Any:
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        return x + 1

    graph = from_torch(exported(checked, torch.ones(3)))
    assert len(graph.bindings) == 1


# --------------------------------------------------------------------------------- dynamic shapes


def sequences() -> Any:
    """x [batch, length, 8] and y [batch, 2 * length], dynamic but for the 8."""

    def program(x: Any, y: Any) -> Any:
        batch, length, width = x.shape
        rows = x.reshape(batch * length, width)
        return rows.sum(1).reshape(batch, length) * length + y.reshape(batch, length, 2).sum(2)

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2, max=64)
    return exported(
        program,
        torch.zeros(2, 3, 8),
        torch.zeros(2, 6),
        dynamic_shapes=(({0: batch, 1: length}, {0: batch, 1: 2 * length}),),
    )


def test_shapes_bind_dynamic_dimensions() -> None:
    program = sequences()
    x, y = np.ones((4, 5, 8), np.float32), np.ones((4, 10), np.float32)
    names = [s.arg.name for s in program.graph_signature.input_specs]
    graph = from_torch(program, {names[0]: (4, 5, 8)})
    (found,) = evaluate(graph, [x, y]).values()
    np.testing.assert_array_equal(found, np.full((4, 5), 8 * 5 + 2))


def test_powers_of_sizes() -> None:
    def squares(x: Any) -> Any:
        return torch.ones(x.shape[0] ** 2) * x.sum()

    length = torch.export.Dim("length", min=2, max=8)
    program = exported(squares, torch.zeros(3), dynamic_shapes=(({0: length},),))
    assert " ** 2" in program.graph_module.code
    graph = from_torch(program, dims={"length": "<=8"})
    found = evaluate(graph, [np.ones(4, np.float32)])
    np.testing.assert_array_equal(next(iter(found.values())), np.full(16, 4))


def test_dims_bind_dynamic_dimensions() -> None:
    program = sequences()
    symbols = list(dict.fromkeys(str(s) for s in program.range_constraints if s.is_Symbol))
    graph = from_torch(program, dims=dict(zip(symbols, (4, 5), strict=True)))
    assert [p.type.shape for p in graph.params] == [(4, 5, 8), (4, 10)]


def without_symbols(text: str, program: Any) -> str:
    """Symbols are numbered otherwise from one torch to the next."""
    for number, symbol in enumerate(program.range_constraints):
        text = text.replace(str(symbol), f"<{number}>")
    return text


def test_refused_shapes(golden: Callable[..., None]) -> None:
    program = sequences()
    refused: list[dict[str, Any]] = [
        {},
        {"shapes": {"tensors_0": (4, 5)}},
        {"shapes": {"tensors_0": (4, 5, 7)}},
        {"shapes": {"tensors_0": (4, 5, 8), "tensors_1": (4, 11)}},
        {"shapes": {"tensors_0": (4, 65, 8)}},
        {"shapes": {"x": (4, 5, 8)}},
        {"dims": {"batch": 4}},
        {"shapes": {"tensors_0": (4, 5, 8)}, "dims": {"batch": "<=4"}},
    ]
    texts = []
    for given in refused:
        with pytest.raises(ImporterError) as error:
            from_torch(program, **given)
        texts.append(f"{given}\n{without_symbols(str(error.value), program)}")
    golden("\n\n".join(texts), "torch_refused_shapes")


# ------------------------------------------------------------------------------------- refusals


def test_refused_programs(golden: Callable[..., None]) -> None:
    x = torch.ones(2, 3)
    image = torch.ones(2, 3, 4, 4)
    refused = {
        "operators": exported(lambda x: torch.linalg.det(x @ x.T) + torch.rand(2), x),
        "data": exported(lambda x: torch.unique(x), x),
        "training": torch.export.export(nn.Sequential(nn.BatchNorm2d(3)).train(), (image,)),
        "dtype": exported(nn.Linear(3, 2, dtype=torch.bfloat16), x.bfloat16()),
        "layer": exported(lambda x: torch.linalg.vector_norm(x, -3), x),
        "module": nn.ReLU(),
    }
    texts = []
    for name, program in refused.items():
        with pytest.raises(ImporterError) as error:
            from_torch(program)
        texts.append(f"{name}\n{error.value}")
    golden("\n\n".join(texts), "torch_refusals")


def test_a_converter_for_an_own_operator() -> None:
    @torch.library.custom_op("mymodule::scaled", mutates_args=())  # type: ignore[untyped-decorator]
    def scaled(x: Tensor, factor: float = 3.0) -> Tensor:
        return x * factor

    @scaled.register_fake  # type: ignore[untyped-decorator]
    def _(x: Tensor, factor: float = 3.0) -> Tensor:
        return torch.empty_like(x)

    program = exported(lambda x: scaled(x) + 1, torch.ones(2))
    with pytest.raises(ImporterError, match=r"mymodule\.scaled \(once, at 'scaled'\)"):
        from_torch(program)

    def convert(node: Any, x: Any, factor: float) -> Any:
        return node.emit("multiply", x, node.constant(factor, node.dtype))

    converters = {"mymodule.scaled": convert}
    model = mlc.compile(program, "host", converters=converters)
    (found,) = model.evaluate({model.reference.params[0].name: np.ones(2, np.float32)}).values()
    np.testing.assert_array_equal(found, [4, 4])


def test_a_converter_that_is_wrong_is_found_out() -> None:
    program = exported(lambda x: torch.relu(x), torch.ones(2))
    with pytest.raises(ImporterError) as error:
        from_torch(
            program, converters={"aten.relu": lambda n, x: n.emit("reshape", x, shape=(1, 2))}
        )
    assert str(error.value) == (
        "the converter returned float32[1, 2], and torch float32[2]\n"
        "  in:  the program, 'relu' (aten.relu)"
    )


# ----------------------------------------------------------------------------------------- files


def test_a_saved_program(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    file = tmp_path / "linear.pt2"
    torch.export.save(exported(module, torch.zeros(1, 3)), file)
    x = np.array([[1, 2, 3]], np.float32)
    with mlc.connect("local://") as board:
        (found,) = board.load(mlc.compile(file, "host")).run({"input": x}).values()
    np.testing.assert_allclose(found, module(torch.from_numpy(x)).detach().numpy(), rtol=1e-5)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ImporterError, match="there is no such file"):
        mlc.compile(tmp_path / "absent.pt2")
    file = tmp_path / "broken.pt2"
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(ImporterError, match=r"this is not a \.pt2 file, or it is damaged") as error:
        mlc.compile(file)
    assert "torch.export.save(program, file)" in str(error.value)
