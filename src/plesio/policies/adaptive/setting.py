"""Period and delay: what the adaptive policy sets, what there is to choose from, and the system side's parameters."""

import math
from dataclasses import dataclass

from plesio.core.errors import PolicySpecError
from plesio.policies.bsp import BSP
from plesio.policies.fields import require_whole
from plesio.policies.local_sgd import LocalSGD

__all__ = ["MODERATE", "SYNCHRONOUS", "Setting", "SystemConfig", "ladder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """The system side's parameters.

    Args:
        gain: Share of the time of a step that a change must promise to save.
        tolerance: Settings this much slower than the best count as equally good.
        memory: Steps of each worker that are remembered.
        largest_period: Longest period to consider.
        balance: Whether slow workers are given smaller shares of the samples.

    Raises:
        PolicySpecError: A value out of its range.
    """

    gain: float = 0.05
    tolerance: float = 0.03
    memory: int = 32
    largest_period: int = 32
    balance: bool = True

    def __post_init__(self) -> None:
        for name in ("gain", "tolerance"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise PolicySpecError(f"adaptive: system.{name} is {value}; write a share between 0 and 1")
        require_whole("adaptive", "system.memory", self.memory, minimum=8)
        require_whole("adaptive", "system.largest_period", self.largest_period, minimum=1)


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A period and a delay, in the order of their slack.

    >>> Setting(slack=0, period=1, delay=0).spec, Setting.of(period=8, delay=4).spec
    ('bsp', 'local_sgd:8,delay=4')
    """

    slack: int
    period: int
    delay: int

    @classmethod
    def of(cls, *, period: int, delay: int) -> "Setting":
        """The setting with its slack, H + d - 1."""
        return cls(slack=period + delay - 1, period=period, delay=delay)

    @property
    def policy(self) -> BSP | LocalSGD:
        """The policy that runs it."""
        return BSP() if self.slack == 0 else LocalSGD(period=self.period, delay=self.delay)

    @property
    def spec(self) -> str:
        """The policy's text."""
        return self.policy.spec

    @property
    def cycle(self) -> int:
        """Steps after which the setting repeats itself."""
        return self.period


SYNCHRONOUS = Setting(slack=0, period=1, delay=0)
MODERATE = Setting(slack=7, period=4, delay=4)
"""To begin with where training may begin with slack: a transfer is felt once in four steps, and measured by then."""


def ladder(largest_period: int) -> tuple[Setting, ...]:
    """The settings to choose from, least slack first: each period without, with half, and with a whole one's delay."""
    periods = [2**k for k in range(int(math.log2(largest_period)) + 1)]
    settings = {Setting.of(period=h, delay=d) for h in periods for d in {0, h // 2, h}}
    return tuple(sorted(settings))
