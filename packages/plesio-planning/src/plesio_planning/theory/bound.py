"""A theorem's bound for given numbers: a value, the parts that add up to it, and the premises that it rests on.

A theorem refuses an argument that is out of range with a `ConfigError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plesio.core.errors import ArgumentError
from plesio.core.records import to_json
from plesio.core.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A premise of a theorem: a quantity that may not exceed a limit.

    Attributes:
        premise: Premise in the theorem's signs: ``αL < 1``.
        strict: Whether it must stay below the limit, rather than at most reach it.
        remedy: Way to satisfy it, as the end of an error message: ``write a `learning_rate` below 0.1``.
    """

    premise: str
    value: float
    limit: float
    strict: bool = False
    remedy: str

    @property
    def holds(self) -> bool:
        """True if the quantity is within the limit."""
        return self.value < self.limit if self.strict else self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A theorem's answer. There is none where a premise fails.

    Attributes:
        quantity: Bounded quantity, in words or in the theorem's signs.
        unit: Unit of the value: ``s``, ``B``, ``share``, ``steps`` ...; empty where the inputs' units decide.
        parts: Parts that add up to the value, by name.
        conditions: The premises, which hold.
        order: Whether constants and logarithms are left out, so that the value shows only how the parts grow.
        also: Other numbers that follow, by name with the unit in brackets.

    Raises:
        ConfigError: A premise does not hold.
    """

    quantity: str
    unit: str = ""
    parts: Mapping[str, float]
    conditions: tuple[Condition, ...] = ()
    order: bool = False
    also: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for condition in self.conditions:
            if not condition.holds:
                raise ArgumentError(
                    f"{condition.premise} does not hold ({condition.value:.4g} against {condition.limit:.4g}); "
                    f"{condition.remedy}"
                )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; remedies name parameters without marks."""
        conditions = tuple(replace(one, remedy=str(ArgumentError(one.remedy))) for one in self.conditions)
        values: dict[str, Any] = to_json(replace(self, conditions=conditions))
        return values

    @property
    def value(self) -> float:
        """The sum of the parts.

        >>> Bound(quantity="steps", parts={"without noise": 100.0, "noise": 50.0}).value
        150.0
        """
        return sum(self.parts.values())

    def format(self, value: float) -> str:
        """Write a number in the bound's unit.

        >>> Bound(quantity="bubble", unit="share", parts={}).format(0.17949)
        '17.95 %'
        """
        if self.unit == "s":
            return format_seconds(value)
        if self.unit == "B":
            return format_bytes(value)
        if self.unit == "share":
            return f"{100 * value:.4g} %"
        return f"{value:.4g} {self.unit}".rstrip()
