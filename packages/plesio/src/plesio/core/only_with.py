"""The other input without which an input has no effect, written beside its type."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, init=False)
class OnlyWith:
    """The condition of an input's effect: ``shape: Annotated[float, OnlyWith("distribution", "pareto")]``.

    With another value of that input it is refused, because it would change nothing.

    Attributes:
        other: The input that decides.
        values: The values with which it has an effect, or with one of which among several; without values it has one
            only if the other is not given.
        above: The number that the other has to exceed instead.
    """

    other: str
    values: tuple[str, ...]
    above: float | None

    def __init__(self, other: str, *values: str, above: float | None = None) -> None:
        object.__setattr__(self, "other", other)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "above", above)

    def refusal(self, name: str, value: Any) -> str:
        """Explain why ``name`` has no effect where the other input has this value; empty where it has one.

        >>> OnlyWith("distribution", "pareto").refusal("shape", "uniform")
        '`shape` has no effect with a `distribution` of uniform; leave it out, or write `distribution = pareto`'
        >>> OnlyWith("cv", above=0).refusal("seed", 0.0)
        '`seed` has no effect with a `cv` of 0; leave it out, or write more than 0 for `cv`'
        """
        if self.above is not None:
            if value > self.above:
                return ""
            instead = f"write more than {self.above:g} for `{self.other}`"
            return f"`{name}` has no effect with a `{self.other}` of {value:g}; leave it out, or {instead}"
        if not self.values:
            return f"`{name}` has no effect with `{self.other}`; leave one of them out" if value else ""
        if isinstance(value, (tuple, list)):
            if set(self.values) & set(value):
                return ""
            instead = f"{' or '.join(self.values)} among the `{self.other}`"
            return f"`{name}` has no effect without {instead}; leave it out, or add {self.values[0]} to them"
        if value in self.values:
            return ""
        instead = " or ".join(f"`{self.other} = {each}`" for each in self.values)
        return f"`{name}` has no effect with a `{self.other}` of {value}; leave it out, or write {instead}"
