"""The numbers of the policy: what each means, its unit, and where it comes from."""

from dataclasses import dataclass

__all__ = ["Numbers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All that can be set.

    Attributes:
        price: Expected loss of a step's progress (in logarithms) at a slack of 1; it grows with slack (`worth`).
        doubt: Standard deviation of that before anything is seen.
        store_price: The same for a step on the store.
        store_doubt: The same.
        caution: Standard deviations below the expected progress at which settings are compared.
        lost_steps: Count of a lost step beside the lost time, for samples are limited.
        momentum_price: Added to ``store_price`` for each doubling of the workers, if the optimizer has momentum.
        unlike_price: Added to ``price`` from the second doubling on, where the workers' data differ.
        gain: Least gain in the logarithm of progress a second for a change to something looser.
        warm_up: Reviews without slack.
        begins: Share of the run in which an optimizer that normalises learns the noise of a replica's own steps.
        finish: Share of the steps that is strict at the end.
        finish_time: Share of the whole run's time that the strict end may take at most.
        trial: Reviews of a trial.
        window: Reviews that the trend is taken from.
        chance_back: Chance that a harmless change is ever taken back.
        chance_restore: Chance that healthy training is ever taken for divergence.
        first_slack: Largest slack of the first trial, in steps; each trial that passes allows the next doubling.
        largest_slack: Largest slack, in steps.
    """

    price: float = 0.02
    doubt: float = 0.01
    store_price: float = 0.05
    store_doubt: float = 0.05
    caution: float = 1.0
    lost_steps: float = 1.0
    momentum_price: float = 0.05
    unlike_price: float = 0.2
    gain: float = 0.1
    warm_up: int = 3
    begins: float = 0.25
    finish: float = 0.1
    finish_time: float = 0.25
    trial: int = 4
    window: int = 6
    chance_back: float = 0.01
    chance_restore: float = 0.001
    first_slack: int = 1
    largest_slack: int = 31
