"""Registers the policy ``progress``, under trial: the controller of progress per second in the place of adaptive's."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plesio.policies import spec
from plesio.policies.adaptive import Adaptive

from .controller import ProgressController
from .numbers import Numbers

__all__ = ["Progress", "register"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Adaptive):
    """Adaptive, with the other controller."""

    name: ClassVar[str] = "progress"
    numbers: Numbers = field(default_factory=Numbers)

    @property
    def spec(self) -> str:
        """``progress`` and the numbers that differ from their defaults."""
        plain = Numbers()
        changed = [
            f"{one.name}={getattr(self.numbers, one.name):g}"
            for one in dataclasses.fields(Numbers)
            if getattr(self.numbers, one.name) != getattr(plain, one.name)
        ]
        return ",".join([self.name, *changed])

    def director(self, *, clock: int = 0) -> ProgressController:
        """Return the controller."""
        return ProgressController(self, self.numbers)


def _make(**options: Any) -> Progress:
    plain = Numbers()
    values: Mapping[str, Any] = {name: type(getattr(plain, name))(float(text)) for name, text in options.items()}
    return Progress(numbers=Numbers(**values))


def register() -> None:
    """Make the policy known to `parse_policy`."""
    spec._FORMS["progress"] = spec._Form(
        make=_make,
        help="on trial",
        example="progress",
        keys={one.name: (one.name, str) for one in dataclasses.fields(Numbers)},
    )
