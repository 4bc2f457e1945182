"""An update's weight by its staleness: pure functions τ -> weight, separate from the policies and composable.

An update computed from old parameters points where the loss used to fall. Two remedies are known: count it less, or
do not count it at all.

==================  ======================  ========================================================================
text                weight of an update     source
==================  ======================  ========================================================================
``none``            1                       plain asynchronous SGD (Dean et al. 2012, Downpour)
``inverse``         1 / (1 + τ)             Zhang, Gupta, Lian & Liu 2016, "Staleness-aware Async-SGD": the learning
                                            rate divided by τ; 1 + τ here, so that a fresh update counts fully
``exp:LAMBDA``      exp(-LAMBDA τ)          an exponential penalty on staleness, after Chan & Lane 2014
``cap:K``           1 up to K, 0 beyond     refusing what comes too late, as Chen et al. 2016 ("Revisiting
                                            Distributed Synchronous SGD") refuse what their backup workers finish late
==================  ======================  ========================================================================

``+`` joins two: their weights are multiplied, and what one discards is discarded (``inverse+cap:8``). Every weighting
gives 1 to a fresh update and never rises with τ.
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.errors import PolicySpecError, nearest
from plesio.core.within import AT_LEAST_0
from plesio.policies.fields import check_policy


class Weighting(ABC):
    """A weight in [0, 1] for every staleness τ; 1 at τ = 0, never rising."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, tau: int) -> float:
        """Return the weight of an update of staleness ``tau``."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The text that `parse_weighting` turns into an equal weighting."""

    def discards(self, tau: int) -> bool:
        """Return True if an update of staleness ``tau`` is refused, because it would count for nothing."""
        return self(tau) == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unweighted(Weighting):
    """Every update counts fully."""

    spec: ClassVar[str] = "none"

    def __call__(self, tau: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverse(Weighting):
    """``1 / (1 + τ)``.

    >>> [Inverse()(tau) for tau in (0, 1, 3)]
    [1.0, 0.5, 0.25]
    """

    spec: ClassVar[str] = "inverse"

    def __call__(self, tau: int) -> float:
        return 1.0 / (1 + tau)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(Weighting):
    """``exp(-rate τ)``; refused where that is zero in double precision.

    Args:
        rate: λ, at least 0.

    >>> round(Exponential(rate=0.1)(10), 4)
    0.3679
    """

    rate: Annotated[float, AT_LEAST_0]

    def __post_init__(self) -> None:
        check_policy(self, "weighting exp: ")

    def __call__(self, tau: int) -> float:
        return math.exp(-self.rate * tau)

    @property
    def spec(self) -> str:
        """``exp:RATE``."""
        # repr(1e20) is "1e+20", and "+" joins weightings.
        return f"exp:{repr(float(self.rate)).removesuffix('.0').replace('+', '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap(Weighting):
    """Counts fully up to ``limit`` and is refused beyond.

    Args:
        limit: The largest staleness that is still applied.
    """

    limit: Annotated[int, AT_LEAST_0]

    def __post_init__(self) -> None:
        check_policy(self, "weighting cap: ")

    def __call__(self, tau: int) -> float:
        return 1.0 if tau <= self.limit else 0.0

    @property
    def spec(self) -> str:
        """``cap:LIMIT``."""
        return f"cap:{self.limit}"


@dataclass(frozen=True, slots=True)
class Product(Weighting):
    """Several weightings multiplied.

    Args:
        factors: At least two, each of another kind, none of them `Unweighted` or itself a product.

    >>> both = Product((Inverse(), Cap(limit=8)))
    >>> both(1), both.discards(9), both.spec
    (0.5, True, 'inverse+cap:8')
    """

    factors: tuple[Weighting, ...]

    def __post_init__(self) -> None:
        check_policy(self, "weighting: ")
        kinds = [type(factor) for factor in self.factors]
        if len(kinds) < 2 or len(set(kinds)) < len(kinds) or {Unweighted, Product} & set(kinds):
            raise PolicySpecError(
                f'weighting "{self.spec}": "+" joins different weightings, each once, as in "inverse+cap:8"'
            )

    def __call__(self, tau: int) -> float:
        return math.prod(factor(tau) for factor in self.factors)

    @property
    def spec(self) -> str:
        """The factors' specs, joined by ``+``."""
        return "+".join(factor.spec for factor in self.factors)


UNWEIGHTED = Unweighted()

_NAMES = ("none", "inverse", "exp", "cap")


def parse_weighting(text: str) -> Weighting:
    """Parse a weighting.

    >>> parse_weighting("exp:0.1")
    Exponential(rate=0.1)

    Raises:
        PolicySpecError: An unknown name, or a missing or impossible value.
    """
    factors = tuple(_parse_factor(part.strip()) for part in text.split("+"))
    return factors[0] if len(factors) == 1 else Product(factors)


def _parse_factor(text: str) -> Weighting:
    name, _, value = text.partition(":")
    match name:
        case "none" | "inverse" if ":" in text:
            raise PolicySpecError(f'weighting "{text}": {name} takes no value; write "{name}"')
        case "none":
            return UNWEIGHTED
        case "inverse":
            return Inverse()
        case "exp":
            return Exponential(rate=_number(text, value))
        case "cap":
            if not re.fullmatch(r"-?[0-9]+", value):
                raise PolicySpecError(f'weighting "{text}": cap takes a whole number of versions, as in "cap:8"')
            return Cap(limit=int(value))
        case _:
            raise PolicySpecError(f'unknown weighting "{name}"; {nearest(name, _NAMES)}')


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise PolicySpecError(f'weighting "{text}": exp takes a number, as in "exp:0.1"') from None
