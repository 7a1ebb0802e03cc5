"""Chooses the next token: the most likely, or a sampled one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0: the most likely token. Otherwise the seed samples one of the `top_k` most
    likely (0: of all) and, of these, of the fewest that together are as likely as `top_p`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises DecodeError for numbers out of range."""
        likely = self.temperature >= 0 and self.top_k >= 0 and self.seed >= 0
        if not (likely and 0 < self.top_p <= 1):
            raise DecodeError(
                "invalid sampling options",
                where=f"temperature={self.temperature:g}, top_k={self.top_k}, "
                f"top_p={self.top_p:g}, seed={self.seed}",
                mend="top_p above 0 and up to 1; the others 0 or more",
            )

    @property
    def draws(self) -> bool:
        return self.temperature > 0

    def likelihoods(self, logits: Array) -> Array:
        """The probability of each token."""
        scores = logits.astype(np.float64) / self.temperature
        if 0 < self.top_k < scores.size:
            scores[scores < np.partition(scores, -self.top_k)[-self.top_k]] = -np.inf
        found: Array = np.exp(scores - scores.max())
        found /= found.sum()
        if self.top_p < 1:
            order = np.argsort(-found, kind="stable")
            before = np.cumsum(found[order]) - found[order]
            found[order[before >= self.top_p]] = 0.0
            found /= found.sum()
        return found

    def draw(self, logits: Array, random: np.random.Generator) -> int:
        return int(random.choice(logits.size, p=self.likelihoods(logits)))
