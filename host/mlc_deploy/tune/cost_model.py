"""Cost models: they learn from measurements which candidates are worth measuring.

A model is given features and costs, task by task, and ranks candidates of a task. Costs are
relative to the best one of their task. So tasks and boards of different speed teach the same: how
much better one schedule is than another.

The trees are LightGBM's. They regress a power of best / cost, which separates the best and hardly
the rest, and so serves as a ranking. Good candidates weigh more, as in MetaSchedule and Ansor.
Training starts again when results come in, on one thread, and gives the same bits for the same
results. Trees of earlier runs (experience.py) come first, and further trees learn their errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import TuneError
from .features import INSTRUCTIONS, Vector

FEWEST = 8  # results that are needed to learn
MOST = 4096  # last results of a task that are learnt from
LEAST_WEIGHT = 0.1  # of a candidate that failed or is slow; the best one has 1
PARAMETERS = {
    "objective": "regression",
    "learning_rate": 0.12,
    "num_leaves": 16,
    "min_data_in_leaf": 3,
    "min_sum_hessian_in_leaf": LEAST_WEIGHT / 2,  # a leaf of rounding errors alone is fatal
    "feature_fraction": 0.5,
    "lambda_l2": 0.3,
    "max_bin": 63,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
ROUNDS = 80  # trees
SHARPNESS = 10.0  # power of best / cost: 1 % slower becomes 10 % less


Rows = tuple[NDArray[np.float32], NDArray[np.float64]]  # features, costs


class CostModel(Protocol):
    """Ranks candidates."""

    def learn(self, task: str, results: Sequence[tuple[Vector, float]]) -> None:
        """Features and costs (inf where a candidate failed) of a task, in the order measured."""

    def scores(self, candidates: Sequence[Vector]) -> NDArray[np.float64]:
        """Scores; faster candidates should have higher ones."""

    @property
    def trained(self) -> bool:
        """Whether it knows more than a rule of thumb."""


@dataclass
class TreeModel:
    """Gradient-boosted trees. prior: a lightgbm.Booster that later trees are added to. It is used
    alone until there is enough to learn."""

    seed: int = 0
    prior: Any = None
    _rows: dict[str, Rows] = field(default_factory=dict)
    _trees: Any = None
    _stale: bool = False

    def __post_init__(self) -> None:
        require_lightgbm()
        self._trees = self.prior

    @property
    def trees(self) -> Any:
        """The trained lightgbm.Booster; None where nothing has been learnt."""
        if self._stale:
            self._train()
        return self._trees

    @property
    def trained(self) -> bool:
        return self.trees is not None

    def learn(self, task: str, results: Sequence[tuple[Vector, float]]) -> None:
        if not results:
            return
        vectors, costs = np.stack([v for v, _ in results]), np.array([c for _, c in results])
        if task in self._rows:
            known = self._rows[task]
            vectors = np.concatenate([known[0], vectors])
            costs = np.concatenate([known[1], costs])
        self._rows[task] = vectors[-MOST:], costs[-MOST:]
        self._stale = True

    def scores(self, candidates: Sequence[Vector]) -> NDArray[np.float64]:
        """About a power of best cost / cost. Where nothing has been learnt: minus a rough count of
        instructions."""
        if self.trees is None or not candidates:
            return np.array([-float(c[INSTRUCTIONS]) for c in candidates])
        found: NDArray[np.float64] = self.trees.predict(np.stack(candidates), num_threads=1)
        return found

    def _train(self) -> None:
        self._stale = False
        seen: list[NDArray[np.float32]] = []
        labels: list[float] = []
        for vectors, costs in self._rows.values():
            best = float(np.min(costs))
            if isfinite(best):
                seen.append(vectors)
                labels += [(best / c) ** SHARPNESS if isfinite(c) else 0.0 for c in costs.tolist()]
        if len(labels) < FEWEST or len(set(labels)) < 2:
            return
        lightgbm = require_lightgbm()
        data = lightgbm.Dataset(
            np.concatenate(seen),
            np.array(labels),
            weight=np.maximum(labels, LEAST_WEIGHT),
            params={"max_bin": PARAMETERS["max_bin"], "verbosity": -1},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._trees = lightgbm.train(
                {**PARAMETERS, "seed": self.seed}, data, ROUNDS, init_model=self.prior
            )


def require_lightgbm() -> Any:
    """The package; TuneError naming the extra where it is not installed."""
    try:
        import lightgbm
    except ImportError:
        raise TuneError(
            "the cost model needs the package lightgbm, which is not installed",
            mend="pip install 'mlc-deploy[tune]'; or --search random, which needs no model",
        ) from None
    return lightgbm
