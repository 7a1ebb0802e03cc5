"""PyTorch programs with loops, branches, state, masks, complex numbers and open dimensions: on a
board of this machine, against torch itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --only torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops.map import map as mapped  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.utils import _pytree  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.errors import GraphError, ImporterError  # noqa: E402
from mlc_deploy.frontend import from_torch  # noqa: E402
from mlc_deploy.graph import CallBranch, CallLoop  # noqa: E402
from mlc_rpc import Session  # noqa: E402
from tests.frontend.test_torch import Calling, exported  # noqa: E402
from tests.sessions import local  # noqa: E402

__all__ = ["local"]  # a fixture

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # of torch about its own code
]

Array = NDArray[Any]
X = torch.linspace(-1, 2, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def leaves(results: Any) -> list[Array]:
    return [t.numpy() for t in _pytree.tree_leaves(results)]


def agrees(board: Session, module: nn.Module, *tensors: Any) -> mlc.CompiledModel:
    """The module's model, whose outputs on the board are torch's."""
    program = exported(module, *tensors)
    model = mlc.compile(program, "host")
    names = [str(name) for name in program.graph_signature.user_inputs]
    given = {name: t.numpy() for name, t in zip(names, tensors, strict=True)}
    found = board.load(model).run(given)
    expected = leaves(module(*tensors))
    assert len(found) == len(expected)
    for ours, theirs in zip(found.values(), expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return model


# ----------------------------------------------------------------------------- loops and branches


class Weighted(nn.Module):
    """A function of a weight and of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.eye(4) * 1.5)

    def forward(self, *tensors: Any) -> Any:
        return self.function(self.weight, *tensors)


def doubled(w: Any, x: Any) -> Any:
    def going(turn: Any, y: Any) -> Any:
        return (turn < 9) & (y.abs().sum() < 50)

    return while_loop(going, lambda turn, y: (turn + 1, y @ w), (torch.tensor(0), x))


def running(w: Any, x: Any) -> Any:
    return scan(lambda state, row: (state + row @ w, state * row), torch.zeros(4), x, dim=0)


def backwards(w: Any, x: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        return state * 0.5 + row, state @ w

    return scan(step, torch.ones(4), x, dim=0, reverse=True)


def chosen(w: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x - 1, (x,))


def nested(w: Any, x: Any) -> Any:
    """A branch within a loop, which a loop within a branch follows."""

    def turn(number: Any, y: Any) -> Any:
        return number + 1, torch.cond(y.sum() > 4, lambda y: y * 0.5, lambda y: y @ w, (y,))

    _, y = while_loop(lambda number, y: number < 6, turn, (torch.tensor(0), x))
    return torch.cond(
        y.sum() > 1, lambda y: scan(lambda s, r: (s + r, s * r), torch.zeros(4), y)[1],
        lambda y: y * 2, (y,),
    )  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [doubled, running, backwards, chosen, nested, lambda w, x: mapped(lambda row: w @ row, x)],
    ids=["while_loop", "scan", "reverse", "cond", "nested", "map"],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow(local: Session, function: Callable[..., Any], sign: int) -> None:
    agrees(local, Weighted(function), X * sign)


def test_a_loop_is_one_body_and_a_branch_runs_alone() -> None:
    graph = from_torch(exported(Weighted(nested), X))
    kinds = [type(b.call) for b in graph.bindings]
    assert kinds.count(CallLoop) == 1 and kinds.count(CallBranch) == 1
    long = from_torch(exported(Weighted(running), torch.zeros(1000, 4)))
    short = from_torch(exported(Weighted(running), torch.zeros(10, 4)))
    assert len(long.bindings) == len(short.bindings)


def test_a_program_with_a_loop_from_a_file(local: Session, tmp_path: Path) -> None:
    file = tmp_path / "loop.pt2"
    torch.export.save(exported(Weighted(doubled), X), file)
    model = mlc.compile(file, "host")
    found = local.load(model).run({model.reference.params[0].name: X.numpy()})
    for ours, theirs in zip(found.values(), leaves(Weighted(doubled)(X)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# ------------------------------------------------------------------------------------------ state


class Cache(nn.Module):
    """Attention over the rows that were written, as a static cache keeps them."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("keys", torch.full((8, 4), first))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x: Any, at: Any) -> Any:
        self.keys.index_copy_(0, at, x)
        self.count.add_(1)
        seen = torch.arange(8) <= at
        scores = torch.where(seen, self.keys @ x[0], -1e9)
        return torch.softmax(scores, 0) @ self.keys, self.count


@pytest.mark.parametrize("first", [0.0, -1.0])
def test_a_buffer_that_the_module_writes_is_a_state(local: Session, first: float) -> None:
    program = exported(Cache(first), X[:1], torch.tensor([0]))
    model = mlc.compile(program, "host")
    states = {"keys": "keys_next", "count": "count_next"}
    assert dict(model.reference.states) == states | ({"begun": "begun_next"} if first else {})
    with torch.enable_grad():
        module = Cache(first)
    loaded = local.load(model)
    for _ in range(2):  # the second time after a reset
        for turn in range(5):
            row, at = X[turn % 3 : turn % 3 + 1] + turn, torch.tensor([turn])
            found = loaded.step({"x": row.numpy(), "at": at.numpy()})
            expected = leaves(module(row, at))
            for ours, theirs in zip(found.values(), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=f"iteration {turn}")
        saved = loaded.save_state()
        np.testing.assert_allclose(saved["keys"], module.keys.numpy())
        loaded.reset()
        module = Cache(first)


def test_an_input_that_the_module_writes_is_a_state(local: Session) -> None:
    def added(state: Any, x: Any) -> Any:
        state.add_(x)
        return state * 2

    program = exported(added, torch.zeros(4), X[0])
    model = mlc.compile(program, "host")
    names = [str(name) for name in program.graph_signature.user_inputs]
    assert dict(model.reference.states) == {names[0]: f"{names[0]}_next"}
    loaded = local.load(model)
    for turn in range(1, 4):
        (found,) = loaded.step({names[1]: X[0].numpy()}).values()
        np.testing.assert_allclose(found, X[0].numpy() * 2 * turn, rtol=1e-6)


# ---------------------------------------------------------------------- two tensors, masks, places


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.min(x, x.flip(0)),
        lambda x: torch.max(x, torch.tensor(0.5)),
        lambda x: torch.max(x > 0, x.flip(0) > 0),
        lambda x: x[x > 0].cumsum(0),
        lambda x: x[x.sum(1) > 0],
        lambda x: torch.nonzero(x > 0),
        lambda x: torch.masked_select(x, x[0] > 0),
        lambda x: x.index_copy(1, torch.tensor([2, 0]), x[:, :2] * 3),
        lambda x: x.index_put((torch.tensor([0, 2, 0]),), x * 2, accumulate=True),
        lambda x: x.unfold(1, 3, 1),
    ],
    ids="min max bools mask rows nonzero masked_select index_copy accumulate unfold".split(),
)
def test_operators(local: Session, function: Callable[..., Any]) -> None:
    agrees(local, Calling(function), X)


# -------------------------------------------------------------------------------- complex numbers

WINDOW = torch.hann_window(16)
SIGNAL = torch.sin(torch.arange(96) ** 1.5).reshape(2, 48)


def spectrum(x: Any) -> Any:
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: spectrum(x).abs(),
        lambda x: torch.view_as_real(spectrum(x) * (2 - 1j)),
        lambda x: torch.istft(spectrum(x) / 2, 16, 4, window=WINDOW),
        lambda x: torch.fft.rfft(x, norm="ortho").angle().cos(),
        lambda x: torch.fft.irfft2(torch.fft.rfft2(x.reshape(2, 6, 8)) * 2),
        lambda x: torch.fft.ifft(torch.fft.fft(x).conj() + x).real,
        lambda x: torch.view_as_real(
            torch.view_as_complex(x.reshape(2, 12, 2, 2)) * torch.polar(torch.ones(2), x[0, :2])
        ),
        lambda x: (
            torch.fft.fftshift(torch.fft.fft(x)[:, 1:9].reshape(2, 2, 4).transpose(1, 2)).imag
        ),
        lambda x: torch.fft.fft(x.to(torch.complex64)).to(torch.float32),
        lambda x: torch.view_as_real(x * (0.5 - 2j)),
    ],
    ids="stft product istft angle rfft2 conjugate rotary moved cast turned".split(),
)
def test_complex_numbers(local: Session, function: Callable[..., Any]) -> None:
    agrees(local, Calling(function), SIGNAL)


class Rotary(nn.Module):
    """A buffer of complex numbers, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.tensor([0.5, 2.0])))

    def forward(self, x: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * self.turns).flatten(1)


def test_a_buffer_of_complex_numbers(local: Session) -> None:
    agrees(local, Rotary(), X)


# -------------------------------------------------------------------------------- open dimensions


class Attention(nn.Module):
    """A layer of a transformer over texts of any length, embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.places = nn.Embedding(64, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 5)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.last(self.norm(x + y)), (x + y).mean(1)


OPEN: dict[str, tuple[nn.Module, Callable[[int], Any], int]] = {
    "linear": (nn.Sequential(nn.Linear(4, 5), nn.ReLU()), lambda n: torch.rand(n, 4), 0),
    "attention": (Attention(), lambda n: torch.arange(n).remainder(50)[None], 1),
    "convolutions": (
        nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool1d(1)),
        lambda n: torch.rand(1, 4, n), 2,
    ),
    "lstm": (nn.LSTM(4, 6, batch_first=True), lambda n: torch.rand(n, 5, 4), 0),
    "sizes": (
        Calling(lambda x: (x.reshape(-1)[: x.shape[0] * 2], x * x.shape[0], x.cumsum(0)[-1])),
        lambda n: torch.rand(n, 4), 0,
    ),
    "scan": (Weighted(running), lambda n: torch.rand(n, 4), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_a_dimension_stays_open(local: Session, name: str) -> None:
    module, tensor, axis = OPEN[name]
    module.eval()
    program = torch.export.export(
        module, (tensor(7),), dynamic_shapes=_of_all(module, {axis: Dim("length", min=2, max=64)})
    )
    model = mlc.compile(program, "host", dims={"length": "<=64"})
    loaded = local.load(model)
    first = model.reference.params[0].name
    for length in (2, 7, 33, 64):
        x = tensor(length)
        found = loaded.run({first: x.numpy()})
        for ours, theirs in zip(found.values(), leaves(module(x)), strict=False):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _of_all(module: nn.Module, shape: dict[int, Any]) -> Any:
    """dynamic_shapes of a module's only input."""
    several = isinstance(module, Calling | Weighted)
    return ((shape,),) if several else (shape,)


def test_refused(golden: Callable[..., None]) -> None:
    def length(limit: Any) -> dict[str, Any]:
        return {"dynamic_shapes": (({0: Dim("rows", max=limit)},),)}

    rows = exported(lambda x: x * 2, X, **length(16))
    half = Dim("half", max=8)
    two = exported(
        lambda x, y: x.sum(0) + y.sum(0), X[:2], torch.rand(4, 4),
        dynamic_shapes=(({0: half}, {0: 2 * half}),),
    )  # fmt: skip
    refused: Sequence[tuple[str, Any, dict[str, Any]]] = [
        ("larger than the export", rows, {"dims": {"rows": "<=64"}}),
        ("no bound", rows, {"dims": {"rows": "many"}}),
        ("another name", rows, {"dims": {"columns": 4}}),
        ("nothing", rows, {}),
        ("computed", two, {"dims": {"half": "<=4"}}),
        ("complex output", exported(lambda x: torch.fft.fft(x), X), {}),
        ("complex operator", exported(lambda x: torch.fft.fft(x).exp().abs(), X), {}),
        ("mask of columns", exported(lambda x: x[:, X[0] > 0], X), {}),
    ]
    texts = []
    for name, program, given in refused:
        with pytest.raises((ImporterError, GraphError)) as error:
            from_torch(program, **given)
        texts.append(f"{name}\n{error.value}")
    golden("\n\n".join(texts), "torch_control_refused")
