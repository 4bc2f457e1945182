"""What was varied in a characterisation: the setting of one comparison, and which settings belong together.

A combination names a level of every factor. None is what the model or the cluster has by itself.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

__all__ = ["FACTORS", "Combination", "Part"]

FACTORS = ("model", "workers", "batch", "link", "imbalance", "topology")
"""What can be varied besides the policy, as attributes of `Combination`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A level of every factor.

    Attributes:
        model: Its name in the recipe.
        workers: How many.
        batch: Samples in a worker's step.
        link: Bandwidth of a host's network interface, with its unit.
        imbalance: Speed of the last worker; the others have 1.
        topology: Name of the cluster, or of its file.
    """

    world: Literal["process", "virtual", "testbed"]
    model: str
    workers: int
    batch: int | None = None
    link: str | None = None
    imbalance: float = 1.0
    topology: str | None = None

    @property
    def text(self) -> str:
        """What is set, in words; the world is named where it is not this machine's processes.

        >>> Combination(world="virtual", model="vgg", workers=4, link="1 Gbit/s", imbalance=0.5).text
        'vgg, 4 workers, 1 Gbit/s, last worker at 0.5, virtual'
        """
        return self._levels_text + ("" if self.world == "process" else f", {self.world}")

    @property
    def _levels_text(self) -> str:
        parts = [self.model, f"{self.workers} worker{'' if self.workers == 1 else 's'}"]
        if self.batch is not None:
            parts.append(f"batch {self.batch}")
        if self.link is not None:
            parts.append(self.link)
        if self.imbalance != 1.0:
            parts.append(f"last worker at {self.imbalance:g}")
        if self.topology is not None:
            parts.append(self.level("topology"))
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        """A folder's name, another one for every combination.

        >>> Combination(world="virtual", model="vgg", workers=4, link="1 Gbit/s").slug
        'virtual-vgg-4-workers-1-Gbit-s'
        """
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.world} {self._levels_text}").strip("-")

    def level(self, factor: str) -> str:
        """The level of a factor, for people.

        >>> Combination(world="virtual", model="vgg", workers=4).level("imbalance")
        'equal'
        """
        value: Any = getattr(self, factor)
        if factor == "imbalance":
            return "equal" if value == 1.0 else f"last at {value:g}"
        if factor == "topology" and value is not None:
            return PurePath(value).stem
        return "own" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Combinations that were crossed with each other.

    Attributes:
        name: What the recipe calls it.
        policies: Run in each of them.
        levels: What was crossed: factors with two levels at least, each with its levels in order.
        combinations: All of them.
    """

    name: str
    policies: Sequence[str]
    levels: Mapping[str, Sequence[Any]]
    combinations: Sequence[Combination]
