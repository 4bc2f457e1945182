"""What the system side is given and what it answers: what training can afford, and what it then wants."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from plesio.policies.adaptive.system.setting import Setting

__all__ = ["Allowance", "SystemChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What training can afford.

    Attributes:
        slack: Most steps that workers may go on by themselves.
        drift: The same where workers step by racks (`topology`).
        staleness: The same on the store, and in low rank.
        efficiency: Progress of a step that a worker makes by itself, over that of one with the mean gradient.
        rack_efficiency: The same of a step that a rack makes by itself.
        store_efficiency: The same of a step on the store.
        bears: Whether nothing else speaks against a setting.
    """

    slack: float = math.inf
    drift: float = math.inf
    staleness: float = math.inf
    efficiency: float = 1.0
    rack_efficiency: float = 1.0
    store_efficiency: float = 1.0
    bears: Callable[[Setting], bool] = field(default=lambda _: True)

    def progress(self, setting: Setting) -> float:
        """Of a step under ``setting``, over that of a step with the mean gradient."""
        if setting.on_store:
            return self.store_efficiency
        if setting.steps_together:
            return 1.0
        return self.rack_efficiency if setting.by_racks else self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemChoice:
    """What the system side wants within the slack that it is given.

    Attributes:
        setting: The one to go on with.
        least: What it would be if training could afford any slack at its price, and nothing were barred.
        shares: By rank, adding up to 1; empty is equal shares.
        reason: Why, as a clause.
        inputs: The figures behind it, by name.
    """

    setting: Setting
    least: Setting
    shares: tuple[float, ...]
    reason: str
    inputs: tuple[tuple[str, float], ...]
