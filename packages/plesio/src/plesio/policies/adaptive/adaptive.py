"""The adaptive policy: it sets period, delay, bound, racks and compression while training runs.

Two sides decide at every review (`controller`). The system side gives the least slack that hides waiting and
communication (`system`). The training side gives the most slack that training can afford now (`gradient`, `noise`,
`phase`, `bound`). The setting is the smaller of the two. A `guard` watches for divergence. If the system side needs no
slack, the policy runs BSP and reports it.

All parameters have one text form, ``KEY=VALUE`` with a dot between component and parameter, and one table in a recipe:

    adaptive,system.gain=0.1,phase.direction=last,gradient=off

    [adaptive]
    system = { gain = 0.1 }
    phase = { direction = "last" }
    gradient = "off"
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args, get_type_hints

from plesio.core.errors import PolicySpecError, nearest
from plesio.policies.adaptive.config.components import Components
from plesio.policies.adaptive.system.setting import SYNCHRONOUS
from plesio.policies.policy import Director, Policy, UpdateKind
from plesio.policies.steered import SteeredPolicy

__all__ = ["Adaptive"]

ALWAYS_ON = ("review", "system")
"""Components that cannot be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive(Components, SteeredPolicy):
    """Switches between BSP, local SGD and SSP, of workers or of racks, and sets their parameters.

    Raises:
        PolicySpecError: A value is out of its range.

    >>> from plesio.policies.adaptive.config.system import SystemConfig
    >>> Adaptive(gradient=None, system=SystemConfig(gain=0.2)).spec
    'adaptive,system.gain=0.2,gradient=off'
    """

    name: ClassVar[str] = "adaptive"
    bound: ClassVar[float] = math.inf

    @property
    def first(self) -> Policy:
        """BSP, until an exchange has been measured."""
        return SYNCHRONOUS.policy

    @property
    def pushes(self) -> UpdateKind | None:
        """``gradient`` if the policy may go to the store, else None."""
        return "gradient" if self.system.store else None

    @property
    def spec(self) -> str:
        """``adaptive`` and every option that differs from its default."""
        return ",".join([self.name, *(f"{key}={value}" for key, value in _differences(self))])

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
        """True unless ``topology`` is off."""
        return self.topology is not None

    def director(self, *, clock: int = 0) -> Director:
        from plesio.policies.adaptive.controller import Controller  # imports numpy, which parsing does not need

        return Controller(self)

    @classmethod
    def option_keys(cls) -> tuple[str, ...]:
        """Return every key of the text form."""
        plain = cls()
        names = []
        for component in dataclasses.fields(cls):
            config = getattr(plain, component.name)
            names += [component.name, *(f"{component.name}.{one.name}" for one in dataclasses.fields(config))]
        return tuple(names)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Make the policy that a table of a TOML file describes: for each component ``"off"``, or its parameters.

        >>> Adaptive.from_table({"phase": {"direction": "both"}, "gradient": "off"}).spec
        'adaptive,gradient=off,phase.direction=both'

        Raises:
            PolicySpecError: A key is unknown, or a value is not allowed.
        """
        options: dict[str, str] = {}
        for component, value in table.items():
            if isinstance(value, Mapping):
                options |= {f"{component}.{name}": _write(one) for name, one in value.items()}
            else:
                options[component] = _write(value)
        return cls.from_options(options)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make the policy with these keys and values, as in the text form.

        Raises:
            PolicySpecError: A key is unknown, or a value is not allowed.
        """
        given: dict[str, dict[str, Any]] = {}
        left_out: set[str] = set()
        plain, known = cls(), cls.option_keys()
        for key, text in options.items():
            component, dot, name = key.partition(".")
            if key not in known:
                raise PolicySpecError(f'unknown key "{key}"; {nearest(key, known)}')
            if dot:
                kind = type(getattr(plain, component))
                given.setdefault(component, {})[name] = _read(key, text, hint=get_type_hints(kind)[name])
            elif text == "off" and component not in ALWAYS_ON:
                left_out.add(component)
            elif text != "on":
                off = "it is always on; leave it out" if component in ALWAYS_ON else f'write "{key}=off"'
                raise PolicySpecError(f'{key} is "{text}"; {off}, or write one of its parameters')
        if both := left_out & given.keys():
            raise PolicySpecError(f"{min(both)} is off and has parameters; leave one out")
        changes: dict[str, Any] = {name: type(getattr(plain, name))(**values) for name, values in given.items()}
        return dataclasses.replace(plain, **changes | dict.fromkeys(left_out))


def _differences(policy: Adaptive) -> Iterator[tuple[str, str]]:
    for component in dataclasses.fields(policy):
        config = getattr(policy, component.name)
        if config is None:
            yield component.name, "off"
            continue
        plain = type(config)()
        for one in dataclasses.fields(config):
            value = getattr(config, one.name)
            if value != getattr(plain, one.name):
                yield f"{component.name}.{one.name}", _write(value)


def _write(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _read(key: str, text: str, *, hint: Any) -> Any:
    try:
        if hint is bool:
            return {"on": True, "off": False}[text]
        if hint in (int, float):
            return hint(text)
    except (KeyError, ValueError):
        kind = {bool: '"on" or "off"', int: "a whole number", float: "a number"}[hint]
        raise PolicySpecError(f'{key} is "{text}"; write {kind}') from None
    if text in (known := get_args(hint)):
        return text
    raise PolicySpecError(f'{key} is "{text}"; {nearest(text, known)}')
