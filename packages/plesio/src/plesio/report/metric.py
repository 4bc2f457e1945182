"""How the metric of a comparison is written: an accuracy in percent and points, anything else as it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plesio.core.share_metric import is_share
from plesio.report.statistics import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The metric that the runs were evaluated by.

    Attributes:
        goal: Whether more or less of it counts as better.
        is_doubted: Whether it fell in every run though more of it counts as better, as of any metric without a goal.
    """

    name: str
    goal: Literal["max", "min"]
    is_doubted: bool = False

    @property
    def is_percent(self) -> bool:
        """True if values are shares of 1 that people read in percent."""
        return is_share(self.name)

    @property
    def scale(self) -> float:
        return 100.0 if self.is_percent else 1.0

    @property
    def axis_title(self) -> str:
        """The name, with its unit where it has one."""
        return f"{self.name} (%)" if self.is_percent else self.name

    def doubted_by(self, runs: Iterable[Sequence[float]]) -> "Metric":
        """Return the metric, doubted if more of it counts as better and its values fell in all of these runs.

        >>> Metric(name="metric", goal="max").doubted_by([(3.0, 2.0, 1.0), (3.0, 0.5)]).is_doubted
        True
        """
        fell = [len(values) > 1 and values[-1] < values[0] for values in runs]
        return replace(self, is_doubted=self.goal == "max" and not self.is_percent and bool(fell) and all(fell))

    def improves(self, difference: float) -> bool:
        return difference > 0 if self.goal == "max" else difference < 0

    def side(self, difference: float) -> Literal["better", "worse", "higher", "lower"]:
        """Name the side of a difference: better or worse, or where the goal is doubted only higher or lower."""
        if self.is_doubted:
            return "higher" if difference > 0 else "lower"
        return "better" if self.improves(difference) else "worse"

    def text(self, value: float) -> str:
        """Write a value for people.

        >>> Metric(name="accuracy", goal="max").text(0.98123), Metric(name="perplexity", goal="min").text(12.3456)
        ('98.1 %', '12.35')
        """
        return f"{self.scale * value:.1f} %" if self.is_percent else f"{value:.4g}"

    def spread_text(self, spread: Spread) -> str:
        """Write mean ± standard deviation; the mean alone for a single seed.

        >>> Metric(name="accuracy", goal="max").spread_text(Spread.of({0: 0.98, 1: 0.97}))
        '97.5 ± 0.7 %'
        """
        if spread.std is None:
            return self.text(spread.mean)
        if self.is_percent:
            return f"{self.scale * spread.mean:.1f} ± {self.scale * spread.std:.1f} %"
        return f"{spread.mean:.4g} ± {spread.std:.2g}"

    def number(self, difference: float) -> str:
        """Write a signed difference, without its unit.

        >>> Metric(name="accuracy", goal="max").number(-0.0021)
        '-0.2'
        """
        if not self.is_percent:
            return f"{difference:+.2g}"
        rounded = round(self.scale * difference, 1) + 0.0  # no "-0.0"
        return f"{rounded:+.1f}"

    def difference_text(self, difference: float) -> str:
        """Write a signed difference for people: percentage points for an accuracy.

        >>> Metric(name="accuracy", goal="max").difference_text(0.0041)
        '+0.4 points'
        """
        return f"{self.number(difference)} points" if self.is_percent else self.number(difference)
