"""When noisy batches forbid slack."""

from dataclasses import dataclass

from plesio.policies.adaptive.config.numbers import require_number
from plesio.policies.fields import require_whole

__all__ = ["NoiseConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseConfig:
    """When noisy batches forbid slack.

    Attributes:
        least_efficiency: Progress of a local step over that of a step with the mean gradient, below which there are
            none.
        noisy_slack: What is allowed below it where local steps can keep the moments of the mean gradient.
        noisy_from: Share of the run from which on that is. Before it, as where nobody knows how long it is, there is no
            store, and there are no local steps while the learning rate rises or where a replica's own step is progress
            by less than ``least_efficiency``.
        least_steps: Steps of a run over its workers, below which local steps count as if the moments were not kept.
        store_efficiency: Progress of a step on the store over that of a synchronous one, where that of a local step is
            below ``least_efficiency``.
        window: Readings with figures, of which the noisiest counts.
        largest_spread: Variance between many workers over that within them, above which their data differ.
        spread_slack: What is allowed then.

    Raises:
        PolicySpecError: A value out of its range.
    """

    least_efficiency: float = 0.5
    noisy_slack: int = 3
    noisy_from: float = 0.25
    least_steps: int = 10
    store_efficiency: float = 0.6
    window: int = 2
    largest_spread: float = 1.6
    spread_slack: int = 1

    def __post_init__(self) -> None:
        require_number("adaptive", "noise.least_efficiency", self.least_efficiency, above=0.0, below=1.0)
        require_number("adaptive", "noise.store_efficiency", self.store_efficiency, above=0.0, below=1.0)
        require_whole("adaptive", "noise.noisy_slack", self.noisy_slack, minimum=0)
        require_number("adaptive", "noise.noisy_from", self.noisy_from, above=0.0, below=1.0)
        require_whole("adaptive", "noise.least_steps", self.least_steps, minimum=0)
        require_whole("adaptive", "noise.window", self.window, minimum=1)
        require_number("adaptive", "noise.largest_spread", self.largest_spread, above=1.0)
        require_whole("adaptive", "noise.spread_slack", self.spread_slack, minimum=0)
