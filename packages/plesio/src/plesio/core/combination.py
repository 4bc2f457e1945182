"""The factors of a characterisation: the setting of one comparison, and which settings belong together.

A combination names a level of every factor. None is what the model or the cluster has by itself.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

FACTORS = ("model", "workers", "batch", "link", "imbalance", "topology")
"""The factors that can be varied besides the policy, as attributes of `Combination`."""


def level_text(factor: str, level: Any) -> str:
    """Write the level of a factor.

    >>> level_text("imbalance", 0.5), level_text("topology", "clusters/2x2x1gbe.toml")
    ('last at 0.5', '2x2x1gbe')
    """
    if factor == "imbalance":
        return "equal" if level == 1.0 else f"last at {level:g}"
    return PurePath(level).stem if factor == "topology" else str(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A level of every factor.

    Attributes:
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
        """The setting in words; the world is named where it is not this machine's processes.

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
            parts.append(level_text("topology", self.topology))
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        """A folder's name, another one for every combination.

        >>> Combination(world="virtual", model="vgg", workers=4, link="1 Gbit/s").slug
        'virtual-vgg-4-workers-1-Gbit-s'
        """
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.world} {self._levels_text}").strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Combinations that were crossed with each other.

    Attributes:
        policies: Run in each of them.
        levels: Factors that were crossed, with two levels at least, each with its levels in order.
        combinations: All of them, in the order of the levels' product, the last factor varying fastest.
    """

    name: str
    policies: Sequence[str]
    levels: Mapping[str, Sequence[Any]]
    combinations: Sequence[Combination]

    def along(self, factor: str) -> dict[str, Combination]:
        """Return combinations by the factor's level, with the first level of all others.

        >>> few, many = (Combination(world="virtual", model="vgg", workers=workers) for workers in (1, 4))
        >>> part = Part(name="scaling", policies=["bsp"], levels={"workers": (1, 4)}, combinations=[few, many])
        >>> part.along("workers")["4"] is many
        True
        """
        first = {name: levels[0] for name, levels in self.levels.items() if name != factor}
        found: dict[str, Combination] = {}
        for levels, combination in zip(itertools.product(*self.levels.values()), self.combinations, strict=True):
            chosen = dict(zip(self.levels, levels, strict=True))
            if all(chosen[name] == level for name, level in first.items()):
                found[level_text(factor, chosen[factor])] = combination
        return found
