"""The numbers that an input may be, written beside its type: ``num_workers: Annotated[int, Within(1, 4096)]``."""

import math
from dataclasses import dataclass
from typing import Literal

_LARGEST = 1e30
"""The largest number whose squares and cubes are sure to be finite."""
_LARGEST_WHOLE = 10**15
"""Up to here a float is exact."""


@dataclass(frozen=True, slots=True)
class Within:
    """Numbers from ``low`` to ``high``; of a tuple, each.

    Attributes:
        high: The most; without one, whatever is sure to be finite when it is squared.
        without: Which of the two are left out.
        fewest: How many a tuple has at least.
        most: How many it has at most.
    """

    low: float = -_LARGEST
    high: float = _LARGEST
    without: Literal["", "low", "high", "both"] = ""
    fewest: int = 1
    most: int = 100

    def refusal(self, value: float) -> str:
        """Return advice on what to write instead of ``value``; empty if it is within.

        >>> Within(1, 4096).refusal(0), Within(0, without="low").refusal(0.0), Within(1, 4096).refusal(8)
        ('write 1 to 4096', 'write more than 0', '')
        >>> Within(0).refusal(1e300), Within(0).refusal(float("nan"))
        ('write at most 1e+30', 'write a finite number')
        """
        if value != value or (abs(value) == math.inf and self.high != math.inf):
            return "write a finite number"  # math.isfinite has no answer for whole numbers above 1e308
        above = value > self.low or (value == self.low and self.without not in ("low", "both"))
        below = value < self.high or (value == self.high and self.without not in ("high", "both"))
        if not below and self.high == _LARGEST:
            return f"write at most {_LARGEST:g}"
        if not above or not below:
            return f"write {self.words}"
        if isinstance(value, int) and abs(value) > max(_LARGEST_WHOLE, self.high if self.high < _LARGEST else 0):
            return f"write at most {_LARGEST_WHOLE:.0e}"
        return ""

    @property
    def words(self) -> str:
        """The numbers, after "a number of"; empty for any.

        >>> Within(1).words, Within(0, 1, without="both").words
        ('1 or more', 'more than 0, less than 1')
        """
        first = f"more than {_text(self.low)}" if self.without in ("low", "both") else f"{_text(self.low)} or more"
        last = f"less than {_text(self.high)}" if self.without in ("high", "both") else f"at most {_text(self.high)}"
        if self.high >= _LARGEST:
            return first if self.low > -_LARGEST else ""
        if self.low == -_LARGEST:
            return last
        return f"{first}, {last}" if self.without else f"{_text(self.low)} to {_text(self.high)}"

    def refusal_of_length(self, length: int) -> str:
        """Return how many values to write instead of ``length``; empty if it is as many as there may be.

        >>> Within(fewest=3).refusal_of_length(1)
        'write 3 or more'
        """
        if length < self.fewest:
            return f"write {self.fewest} or more"
        return f"write at most {self.most}" if length > self.most else ""


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


ANY = Within()
AT_LEAST_0 = Within(0)
AT_LEAST_1 = Within(1)
ABOVE_0 = Within(0, without="low")
ABOVE_1 = Within(1, without="low")
SEED = Within(0, 2**64 - 1)
SHARE = Within(0, 1)
PROPER_SHARE = Within(0, 1, without="both")
DURATION_OR_0 = Within(0, 1e9)
"""Seconds; 30 years, with nothing that is longer."""
DURATION = Within(1e-12, 1e9)
SIZE_OR_0 = Within(0, 1e18)
SIZE = Within(1, 1e18)
"""Bytes."""
BANDWIDTH = Within(1, 1e18)
"""Bytes per second."""
