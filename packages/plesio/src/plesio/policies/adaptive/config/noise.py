"""Parameters of the objection to slack because of noisy batches."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import ABOVE_1, AT_LEAST_0, AT_LEAST_1, PROPER_SHARE
from plesio.policies.fields import check_policy

__all__ = ["NoiseConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseConfig:
    """Limits beyond which noisy batches forbid slack.

    Attributes:
        least_efficiency: Least progress of a local step, over that of a step with the mean gradient, at which there are
            local steps.
        noisy_slack: Slack in steps below that efficiency, if local steps can keep the moments of the mean gradient.
        noisy_from: Share of the run after which ``noisy_slack`` holds. Before it, or if the length of the run is
            unknown, there is no store; there are no local steps either while the learning rate rises, or if a replica's
            own step makes less progress than ``least_efficiency``.
        least_steps: Steps of a run over its workers, below which local steps count as if the moments were not kept.
        store_efficiency: Progress of a step on the store over that of a synchronous one, if that of a local step is
            below ``least_efficiency``.
        window: Readings with figures, of which the noisiest counts.
        largest_spread: Variance between many workers over that within them, above which their data differ.
        spread_slack: Slack in steps if the data differ.
    """

    least_efficiency: Annotated[float, PROPER_SHARE] = 0.5
    noisy_slack: Annotated[int, AT_LEAST_0] = 3
    noisy_from: Annotated[float, PROPER_SHARE] = 0.25
    least_steps: Annotated[int, AT_LEAST_0] = 10
    store_efficiency: Annotated[float, PROPER_SHARE] = 0.6
    window: Annotated[int, AT_LEAST_1] = 2
    largest_spread: Annotated[float, ABOVE_1] = 1.6
    spread_slack: Annotated[int, AT_LEAST_0] = 1

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: noise.")
