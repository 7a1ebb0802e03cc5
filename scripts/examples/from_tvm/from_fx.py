"""A traced torch.fx graph compiles; converters by type of module and by function extend it.

What has no converter goes through torch.export. Needs the extra 'torch'.

    python scripts/examples/from_tvm/from_fx.py [BOARD]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from running import Board, command, connected

import mlc_deploy as mlc
from mlc_deploy.board.connect import target_of


def map_nn_linear(node: Any, x: Any) -> Any:
    """node.module is the torch.nn.Linear."""
    weight = node.constant(node.module.weight.detach().numpy(), "float32")
    bias = node.constant(node.module.bias.detach().numpy(), "float32")
    return node.emit("add", node.emit("dense", x, weight, transpose_b=True), bias)


def map_relu(node: Any, x: Any) -> Any:
    return node.emit("relu", x)


def main(board: Board = "local://") -> None:
    import torch
    from torch import fx, nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)
            self.pool = nn.MaxPool2d(2)
            self.linear = nn.Linear(4 * 3 * 3, 10)

        def forward(self, x: Any) -> Any:
            y = self.pool(torch.relu(self.conv(x)))
            return torch.relu(self.linear(torch.flatten(y, 1)))

    traced = fx.symbolic_trace(Net().eval())
    converters = {nn.Linear: map_nn_linear, torch.relu: map_relu}
    x = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype(np.float32)
    with connected(board) as session:
        target = target_of(session.device)
        ex = mlc.compile(traced, target, shapes={"x": x.shape}, converters=converters)
        found = mlc.VirtualMachine(ex, session)["main"](x)
    with torch.no_grad():
        np.testing.assert_allclose(found, traced(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    command(main)
