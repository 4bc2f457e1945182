"""The adaptive policy: it sets period, delay, bound, racks and compression while training runs.

At every review it takes the setting whose progress per second has the highest lower bound (`controller`), from the
seconds of a step, which are measured (`system`), and from what a step is worth (`worth`), which is believed at first
and then tried. A `guard` watches for divergence.

Numbers and switches have one flat text form, and one table in a recipe:

    adaptive,price=0.03,store=off

    [adaptive]
    price = 0.03
    store = "off"
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from plesio.policies.adaptive.numbers import Options
from plesio.policies.adaptive.system.setting import ROUNDED_STEPS, SYNCHRONOUS
from plesio.policies.policy import Director, Policy, UpdateKind
from plesio.policies.steered import SteeredPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive(Options, SteeredPolicy):
    """Switches between BSP, local SGD and SSP, of workers or of racks, and sets their parameters.

    Raises:
        PolicySpecError: A value is out of its range.

    >>> Adaptive(gain=0.2, store=False).spec
    'adaptive,gain=0.2,store=off'
    """

    name: ClassVar[str] = "adaptive"
    bound: ClassVar[float] = math.inf

    @property
    def first(self) -> Policy:
        """BSP, until an exchange has been measured."""
        return SYNCHRONOUS.policy

    @property
    def first_if_slow(self) -> Policy:
        """BSP in 8 bits, if messages may be compressed: its exchanges show the time of those in full."""
        return (ROUNDED_STEPS if self.compress else SYNCHRONOUS).policy

    @property
    def pushes(self) -> UpdateKind | None:
        """``gradient`` if the policy may go to the store, else None."""
        return "gradient" if self.store else None

    @property
    def needs_server_optimizer(self) -> bool:
        """False: without an optimizer that servers can run, the policy stays on the collective."""
        return False

    @property
    def most_servers(self) -> int | None:
        """Four: with 16 servers, their reports to server 0 take longer than a step (docs/log.md, 21)."""
        return 4

    @property
    def remembers(self) -> bool:
        """True: decisions follow from all past events."""
        return True

    @property
    def goes_by_racks(self) -> bool:
        """True unless ``racks`` is off."""
        return self.racks

    def director(self, *, clock: int = 0) -> Director:
        from plesio.policies.adaptive.controller import Controller  # imports numpy, which parsing does not need

        return Controller(self)
