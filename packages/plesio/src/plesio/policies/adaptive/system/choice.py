"""Input and output of the system side: the allowance of training, and the choice of a setting."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from plesio.policies.adaptive.system.setting import Setting

__all__ = ["Allowance", "SystemChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Allowance: what training can afford.

    Attributes:
        slack: Most steps that workers may make by themselves.
        drift: The same if workers step by racks (`topology`).
        staleness: The same on the store, and in low rank.
        efficiency: Progress of a worker's own step, over that of one with the mean gradient.
        rack_efficiency: The same for a rack's own step.
        store_efficiency: The same for a step on the store.
        bears: Returns True if nothing else forbids a setting.
    """

    slack: float = math.inf
    drift: float = math.inf
    staleness: float = math.inf
    efficiency: float = 1.0
    rack_efficiency: float = 1.0
    store_efficiency: float = 1.0
    bears: Callable[[Setting], bool] = field(default=lambda _: True)

    def progress(self, setting: Setting) -> float:
        """Return the progress of a step under ``setting``, over that of a step with the mean gradient."""
        if setting.on_store:
            return self.store_efficiency
        if setting.steps_together:
            return 1.0
        return self.rack_efficiency if setting.by_racks else self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemChoice:
    """Choice of the system side within its allowance.

    Attributes:
        setting: The setting of the next steps.
        least: The choice if training could afford any slack at its price, and nothing were barred.
        shares: Shares by rank, adding up to 1; empty for equal shares.
        reason: One clause.
        inputs: The figures behind the choice, by name.
    """

    setting: Setting
    least: Setting
    shares: tuple[float, ...]
    reason: str
    inputs: tuple[tuple[str, float], ...]
