"""Which token comes next: the likeliest, or one that is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0: the likeliest token. Otherwise one is drawn, by the seed, of the `top_k`
    likeliest (0: of all) and, of these, of the fewest that are together as likely as `top_p`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @property
    def draws(self) -> bool:
        return self.temperature > 0

    def likelihoods(self, logits: Array) -> Array:
        """Of each token to be drawn."""
        scores = logits.astype(np.float64) / self.temperature
        if 0 < self.top_k < scores.size:
            scores[scores < np.partition(scores, -self.top_k)[-self.top_k]] = -np.inf
        found = np.exp(scores - scores.max())
        found /= found.sum()
        if self.top_p < 1:
            order = np.argsort(-found, kind="stable")
            before = np.cumsum(found[order]) - found[order]
            found[order[before >= self.top_p]] = 0.0
            found /= found.sum()
        result: Array = found
        return result

    def draw(self, logits: Array, random: np.random.Generator) -> int:
        return int(random.choice(logits.size, p=self.likelihoods(logits)))
