"""A router that learns, with and without a loss that balances experts.

A token's affinity to an expert is the expert's popularity plus what is the token's own (Gumbel noise, so that the most
liked experts have exactly the popularities' shares). The router adds a bias to each expert and takes the softmax P; a
token goes to the expert of its largest sum. Descent on the biases makes ``-mean Σ P·affinity + α E Σ f_i P_i`` less:
the first term is what a task would reward, the second the balancing loss of Shazeer et al. 2017 as Fedus et al. 2021
have it (equation 4), with f the shares of tokens that experts get, through which no gradient goes.

The finding: without the second term descent makes the popular experts more popular still; with it, balance is paid
for by tokens that do not get the expert that they like most. Limits: experts here do not learn, so
they do not become worth what they are given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_STEPS = 30
_LEARNING_RATE = 4.0
_TOKENS = 2048
_TEST_TOKENS = 16384

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedRouting:
    """The router in the end.

    Attributes:
        weight: α.
        load_by_step: The fullest expert's tokens by the mean, as descent goes on.
        load: The same in the end, of other tokens than those learnt from.
        dropped: Share of these that exceed the capacity.
        moved: Share of these that do not go to the expert which they like most.
    """

    weight: float
    load_by_step: tuple[float, ...]
    load: float
    dropped: float
    moved: float


def balance_router(
    popularity: Array, weights: Sequence[float], *, capacity_factor: float, seed: int
) -> tuple[BalancedRouting, ...]:
    """Return the router after descent, for each weight α of the balancing loss.

    ``popularity`` is the share of the tokens that like each expert most, ``capacity_factor`` what an expert takes of
    them, by the mean.
    """
    random = np.random.default_rng(seed)
    liked = np.log(popularity) + random.gumbel(size=(_TOKENS, len(popularity)))
    liked_later = np.log(popularity) + random.gumbel(size=(_TEST_TOKENS, len(popularity)))
    found = []
    for weight in weights:
        biases, loads = _descend(liked, weight)
        chosen = (liked_later + biases).argmax(axis=1)
        shares = np.bincount(chosen, minlength=len(popularity)) / len(chosen)
        found.append(
            BalancedRouting(
                weight=weight,
                load_by_step=tuple(loads),
                load=float(shares.max() * len(popularity)),
                dropped=float(np.maximum(shares - capacity_factor / len(popularity), 0).sum()),
                moved=float((liked_later.argmax(axis=1) != chosen).mean()),
            )
        )
    return tuple(found)


def _descend(liked: Array, weight: float) -> tuple[Array, list[float]]:
    num_tokens, num_experts = liked.shape
    biases, loads = np.zeros(num_experts), []
    for _ in range(_STEPS):
        logits = liked + biases
        shares = np.bincount(logits.argmax(axis=1), minlength=num_experts) / num_tokens
        loads.append(float(shares.max() * num_experts))
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        # d/d bias_e of Σ_i P_i w_i is P_e (w_e - Σ_i P_i w_i), here with w = αE f - affinity
        worth = weight * num_experts * shares - liked
        gradient = (chances * (worth - (chances * worth).sum(axis=1, keepdims=True))).mean(axis=0)
        biases -= _LEARNING_RATE * gradient
    return biases, loads
