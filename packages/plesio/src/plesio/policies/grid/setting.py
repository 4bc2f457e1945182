"""The setting of a grid: S groups of K stages each, how far gradients may lag, and how groups come to agree.

Its text: ``grid:SxK[,KEY=VALUE]...``, such as ``grid:2x4,delay=2,mixing=ring,every=4``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError, nearest
from plesio.core.mixing import GRAPHS, Mixing
from plesio.core.within import AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.compression import NO_COMPRESSION, Compression, parse_compression
from plesio.policies.spec import parse_policy

ScheduleName = Literal["decoupled", "gpipe", "1f1b", "2bw"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
Weights = Literal["stash", "recompute"]
_PREFIX = "grid:"
GRID_HELP = (
    "the network cut into K stages, in S groups: no pass waits for one of the whole network, and groups mix their "
    "weights, as in grid:2x4,mixing=ring"
)
"""The grid, in one line."""
GRID_OPTIONS: Mapping[str, str] = {
    "schedule": "decoupled, or to compare with gpipe, 1f1b or 2bw",
    "delay": "micro-batches that a stage is ahead for each stage behind it: 2, or 0 for no staleness",
    "micro_batches": "for one update: 1; more of smaller ones make gradients fewer updates late",
    "weights": "a late gradient is taken at the weights of then (stash) or at those of now (recompute)",
    "shrink": "factor on a gradient at each stage that it is sent back through: 1",
    "mixing": "groups mix their weights with all, in a ring, on an exponential graph, or by rows: 0.5 0.5/0.5 0.5",
    "every": "updates between two mixings: 1",
    "bound": "updates that a group may lag behind the others: 0",
    "compress": "what is sent for a mixing: none, fp16, topk:0.01 ...",
}
"""Each option in one line, with its default."""
_ALONE = Mixing.on("all", 1)
_MOST = 1024
"""Groups, or stages; a mixing has a weight for every two groups."""


def is_grid(spec: str) -> bool:
    """Return True if a policy's text is that of a grid.

    >>> is_grid("grid:2x2,delay=1"), is_grid("ssp:4")
    (True, False)
    """
    return spec.strip().lower().startswith(_PREFIX)


def canonical_spec(text: str) -> str:
    """Return the text of a policy or a grid in its canonical form, so that equal settings have equal texts.

    >>> canonical_spec("SSP: 4"), canonical_spec("grid: 2 x 2, every=1")
    ('ssp:4', 'grid:2x2')

    Raises:
        ConfigError: It describes neither.
    """
    return GridSetting.parse(text).spec if is_grid(text) else parse_policy(text).spec


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSetting:
    """An S x K grid.

    Attributes:
        groups: S, replicas of the network.
        stages: K, parts that it is cut into.
        schedule: ``decoupled`` (no stage waits for a pass of the whole network), or one with which it is compared:
            ``gpipe`` and ``1f1b`` (synchronous: an update after every ``micro_batches``) and ``2bw`` (one update late,
            Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training").
        delay: Lead of ``decoupled``: micro-batches that a stage is ahead for each stage behind it, so that stage k's
            gradients are ``delay (K - 1 - k)`` micro-batches late (k from 0). 2 is a message's tick there and one back
            (Pham and Ahn 2025), 1 leaves messages no time (PipeDream, Narayanan et al. 2019), 0 is plain model
            parallelism, and more hides slower links.
        micro_batches: M micro-batches of one update, made of the mean of their gradients, which are so
            ``delay (K - 1 - k) / M`` updates late in the mean.
        weights: Weights at which a late gradient is taken. ``stash``: at the weights of the stage's own forward pass,
            so that it is the gradient of what was computed. ``recompute``: at the present weights, from the stored
            input, with the output's gradient as it comes; one more forward pass, and no copies of weights.
        shrink: Factor on a gradient at each stage that it is sent back through (Zhuang et al. 2022).
        mixing: Graph by which the groups' replicas of a stage mix their weights.
        every: Updates between two mixings.
        bound: Updates that a group may lag behind others: the result of a mixing is added so many updates later.
        compress: Compression of a mixing (CHOCO, Koloskova et al. 2019).

    Raises:
        ConfigError: Values that do not go together.

    >>> GridSetting.parse("grid:2x4,mixing=ring,every=4").delays
    (6, 4, 2, 0)
    """

    groups: Annotated[int, Within(1, _MOST)] = 1
    stages: Annotated[int, Within(1, _MOST)] = 1
    schedule: ScheduleName = "decoupled"
    delay: Annotated[int, AT_LEAST_0] = 2
    micro_batches: Annotated[int, AT_LEAST_1] = 1
    weights: Weights = "stash"
    shrink: Annotated[float, Within(0, 1, without="low")] = 1.0
    mixing: Mixing = _ALONE
    every: Annotated[int, AT_LEAST_1] = 1
    bound: Annotated[int, AT_LEAST_0] = 0
    compress: Compression = NO_COMPRESSION

    def __post_init__(self) -> None:
        check_fields(self, "grid: ")
        if self.mixing.size != self.groups:
            if self.mixing.name == "matrix":
                raise ConfigError(
                    f"the mixing matrix is for {self.mixing.size} groups, the grid has {self.groups}; make them alike"
                )
            object.__setattr__(self, "mixing", Mixing.on(self.mixing.name, self.groups))
        if self.schedule == "2bw" and self.micro_batches < self.stages:
            raise ConfigError(
                f"2bw with {self.micro_batches} micro-batches: write {self.stages} or more, as many as there are stages"
            )
        if self.schedule == "2bw" and self.weights == "recompute":
            raise ConfigError("2bw goes back with the weights it went forward with; leave weights=recompute out")
        self._check_mixing()

    def _check_mixing(self) -> None:
        late = self.bound // self.every
        if self.groups > 1 and late > self.mixing.most_mixings_late():
            fewest = self.bound // (self.mixing.most_mixings_late() + 1) + 1
            raise ConfigError(
                f"bound = {self.bound} with every = {self.every}: a mixing would be added {late} mixings late, and "
                f"replicas drift apart on this graph; write every = {fewest} or more"
            )

    @classmethod
    def parse(cls, text: str) -> "GridSetting":
        """Parse a setting, or raise `ConfigError`."""
        match = re.fullmatch(r"(?:grid:)?\s*(\d+)\s*x\s*(\d+)\s*(?:,(.*))?", text.strip().lower())
        if match is None:
            raise ConfigError(f'"{text}" is no grid; write groups x stages and options, as in grid:2x4,mixing=ring')
        values: dict[str, Any] = {"groups": int(match[1]), "stages": int(match[2])}
        for part in (match[3] or "").split(","):
            if not part.strip():
                continue
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in _READERS:
                raise ConfigError(f'"{text}": a grid has no option "{key}"; {nearest(key, tuple(_READERS))}')
            if not equals or key in values:
                raise ConfigError(f'"{text}": write {key}=VALUE, once')
            try:
                values[key] = _READERS[key](value)
            except ValueError:
                form = "rows of numbers, as in 0.5 0.5/0.5 0.5" if key == "mixing" else "a number"
                raise ConfigError(f'"{text}": {key}={value} cannot be read; write {form}') from None
        if "mixing" in values:
            mixing = values["mixing"]
            values["mixing"] = mixing if isinstance(mixing, Mixing) else Mixing.on(mixing, values["groups"])
        return cls(**values)

    @property
    def spec(self) -> str:
        """The text that gives this setting again."""
        plain = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("groups", "stages", "mixing", "compress")
            and getattr(self, field.name) != field.default
        }
        written = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in plain.items()}
        if self.mixing.name != "all":
            written["mixing"] = self.mixing.name if self.mixing.name in GRAPHS else _rows(self.mixing)
        if self.compress.spec != "none":
            written["compress"] = self.compress.spec
        return ",".join([f"grid:{self.groups}x{self.stages}", *(f"{key}={value}" for key, value in written.items())])

    @property
    def num_workers(self) -> int:
        """S K."""
        return self.groups * self.stages

    @property
    def delays(self) -> tuple[int, ...]:
        """Micro-batches that each stage has gone forward with and not backward, beside the present one."""
        per_stage = {"decoupled": self.delay, "gpipe": self.micro_batches, "1f1b": 1, "2bw": 1}[self.schedule]
        if self.schedule == "gpipe":
            return (self.micro_batches - 1,) * self.stages
        return tuple(per_stage * (self.stages - 1 - stage) for stage in range(self.stages))

    @property
    def updates_late(self) -> tuple[int, ...]:
        """Updates that each stage's gradients are late at most, if decoupled."""
        late = self.delays if self.schedule == "decoupled" else (0,) * self.stages
        return tuple(-(-delay // self.micro_batches) for delay in late)

    @property
    def flushes(self) -> bool:
        """True if all micro-batches under way go back before an update."""
        return self.schedule in ("gpipe", "1f1b")

    def regrouped(self, places: Sequence[int], *, num_joined: int) -> "GridSetting":
        """Return a grid of this one's groups at ``places``, and ``num_joined`` more after them.

        >>> GridSetting.parse("4x2,mixing=ring").regrouped([0, 3], num_joined=1).spec
        'grid:3x2,mixing=ring'

        Raises:
            ConfigError: More are to mix by a matrix that the user gave.
        """
        if num_joined and self.mixing.name == "matrix":
            raise ConfigError(
                f"no group can join a grid that mixes by a given {self.groups} x {self.groups} matrix; "
                f"write {' or '.join(f'mixing={graph}' for graph in GRAPHS)}"
            )
        groups = len(places) + num_joined
        return replace(self, groups=groups, mixing=self.mixing.among(places, num_joined=num_joined))


def _mixing(text: str) -> Mixing | str:
    """Parse a graph's name, or the rows of a matrix: ``0.5 0.5/0.5 0.5``."""
    if not re.match(r"[\d.]", text):
        return text
    return Mixing.given([[float(weight) for weight in row.split()] for row in text.split("/")])


def _rows(mixing: Mixing) -> str:
    return "/".join(" ".join(f"{weight:.12g}" for weight in row) for row in mixing.matrix)


_READERS: Mapping[str, Any] = {
    "schedule": str,
    "delay": int,
    "micro_batches": int,
    "weights": str,
    "shrink": float,
    "mixing": _mixing,
    "every": int,
    "bound": int,
    "compress": parse_compression,
}
