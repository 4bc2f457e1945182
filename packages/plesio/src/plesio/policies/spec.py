"""Policies as text: ``NAME[:VALUE][,KEY=VALUE]...``, as the command line and recipes write them.

``hier:INNER/OUTER`` and ``switch:FIRST/SECOND@CLOCK/...`` have policies in them, each written as it is by itself.

``bsp`` · ``ssp:4`` · ``ssp:inf`` · ``ssp:4,period=2,weight=inverse+cap:8`` · ``asp,weight=exp:0.1`` ·
``local_sgd:8,delay=4`` · ``local_sgd:8,exchange=store`` · ``delayed:1`` · ``bsp,compress=topk:0.01`` ·
``hier:bsp/local_sgd:8,compress=qsgd:8`` · ``fsdp`` · ``bsp,hook=powersgd:2`` · ``bsp,backup=1`` ·
``diloco:30,fragments=3,delay=5`` · ``asp,rate=undivided`` · ``ssp:4,compress=qsgd:8``.
Case and spaces around the parts do not matter.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from plesio.core.arguments import checked
from plesio.core.errors import ConfigError, PolicySpecError, nearest
from plesio.core.units import parse_seconds
from plesio.policies.adaptive import Adaptive
from plesio.policies.asp import ASP
from plesio.policies.bsp import BSP
from plesio.policies.compression import NO_COMPRESSION, Compression, parse_compression
from plesio.policies.delayed import Delayed
from plesio.policies.diloco import DiLoCo
from plesio.policies.fields import KEYS, on_off, whole
from plesio.policies.fsdp import FSDP, parse_blocks
from plesio.policies.hierarchical import Hierarchical
from plesio.policies.interruptible import Interruptible
from plesio.policies.local_sgd import LocalSGD
from plesio.policies.policy import Policy
from plesio.policies.post_local_sgd import PostLocalSGD
from plesio.policies.ssp import SSP
from plesio.policies.switch import Switch
from plesio.policies.torch_hook import TorchHook, parse_torch_hook
from plesio.policies.weighting import UNWEIGHTED, Weighting, parse_weighting


def _bound(value: str) -> float:
    return math.inf if value == "inf" else whole(value)


def _grace(value: str) -> float | str:
    """Parse a time, in seconds where it has no unit."""
    if value == "auto":
        return value
    try:
        return float(value) if value.replace(".", "").isdigit() else parse_seconds(value)
    except ConfigError:
        raise ValueError(value) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one policy is written: its class, and an example; its fields are keys but for the one behind the colon."""

    policy: type[Policy]
    help: str
    example: str


_READERS: Mapping[Any, Callable[[str], Any]] = {
    int: whole,
    float: float,
    bool: on_off,
    int | float: _bound,
    float | Literal["auto"]: _grace,
    Compression: parse_compression,
    Weighting: parse_weighting,
    TorchHook | None: parse_torch_hook,
    tuple[str, ...]: parse_blocks,
}
"""By the type of a field; all others are words."""
_WORDS: Mapping[Callable[[str], Any], str] = {
    float: "a number",
    on_off: '"on" or "off"',
    _grace: 'a time, as in "200 ms", or "auto"',
}
"""Kinds of values, by their readers, for the line on one that cannot be read; others are whole numbers."""


@functools.cache
def _keys(name: str) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """Return the field of each key of the policy with this name, and what reads its value."""
    policy: Any = _FORMS[name].policy
    hints = get_type_hints(policy)
    names = [one.name for one in dataclasses.fields(policy)]
    return {KEYS.get(one, one): (one, _READERS.get(hints[one], str)) for one in names}


_FORMS = {
    "bsp": _Form(
        policy=BSP,
        help="every step waits for all workers (or for all but BACKUP) and averages their gradients",
        example="bsp",
    ),
    "fsdp": _Form(
        policy=FSDP,
        help="like bsp, but each worker holds only its part of parameters, gradients and optimizer state (FSDP2)",
        example="fsdp",
    ),
    "delayed": _Form(
        policy=Delayed,
        help="like bsp, but gradients are applied DELAY steps late and exchanged behind the steps",
        example="delayed:1",
    ),
    "ssp": _Form(
        policy=SSP,
        help="nobody gets more than BOUND steps ahead of the slowest (0: like bsp, inf: like asp)",
        example="ssp:4",
    ),
    "asp": _Form(
        policy=ASP,
        help="nobody waits for anybody; updates are applied as they arrive",
        example="asp,weight=inverse",
    ),
    "local_sgd": _Form(
        policy=LocalSGD,
        help="workers train alone for PERIOD steps, then average their parameters",
        example="local_sgd:8,delay=4",
    ),
    "diloco": _Form(
        policy=DiLoCo,
        help="workers train alone for LOCAL_STEPS steps, and the mean of what they came to is the gradient of an outer "
        "optimizer; in FRAGMENTS parts, one after the other, DELAY steps behind the training; on the store as soon as "
        "QUORUM workers are there",
        example="diloco:30,fragments=3,delay=5",
    ),
    "post_local_sgd": _Form(
        policy=PostLocalSGD,
        help="torch's own: like bsp for WARMUP steps, then workers average their parameters every PERIOD steps",
        example="post_local_sgd:8,warmup=100",
    ),
    "hier": _Form(
        policy=Hierarchical,
        help="workers of a rack act by one policy (bsp), and racks among each other by another (local_sgd, which may "
        "compress what goes between racks, ssp, asp)",
        example="hier:bsp/local_sgd:8,delay=4",
    ),
    "switch": _Form(
        policy=Switch,
        help="one policy after another, each from a step on: FIRST/SECOND@STEP/...",
        example="switch:bsp/asp@200",
    ),
    "adaptive": _Form(
        policy=Adaptive,
        help="finds the policy, its period, delay or bound, and each worker's share of the batch while training",
        example="adaptive,price=0.03,store=off",
    ),
}

ALIASES: Mapping[str, str] = {"modified_async": "asp"}
"""Names of strategies, and the settings that they are: of an asynchronous parameter server, the one without loss."""

POLICY_HELP: Mapping[str, str] = {name: f"{form.help}, as in {form.example}" for name, form in _FORMS.items()}
"""One line on each policy, by name."""


@checked
def parse_policy(text: str) -> Policy:
    """Parse a policy.

    >>> parse_policy("delayed:2")
    Delayed(delay=2, compression=NoCompression())

    Raises:
        PolicySpecError: No such policy or key, or a value it cannot have.
    """
    head, *options = (part.strip() for part in text.strip().lower().split(","))
    if head in ALIASES:
        return parse_policy(",".join([ALIASES[head], *options]))
    name, colon, argument = (part.strip() for part in head.partition(":"))
    if name == "grid":
        raise PolicySpecError(
            f'"{text}" is a grid and no policy: plesio.grid(...) trains in it, plesio.join(...) does not'
        )
    if name == Interruptible.name:
        return Interruptible(policy=parse_policy(text.partition(":")[2]))
    form = _FORMS.get(name)
    if form is None:
        raise PolicySpecError(f'unknown policy "{name}"; {nearest(name, _FORMS)}')
    try:
        if name == Hierarchical.name:
            return _levels(text.partition(":")[2], example=form.example)
        if name == Switch.name:
            return _stages(text.partition(":")[2], example=form.example)
        values = _argument(form, name=name, colon=colon, value=argument) | _options(form, name=name, options=options)
        if name == BSP.name and values.get("backup"):  # backup workers are on the store, which need not be written
            values = {"exchange": "store"} | values
        return form.policy(**values)
    except PolicySpecError as error:
        raise PolicySpecError(f'policy "{text}": {str(error).removeprefix(f"{name}: ")}') from None


def _levels(text: str, *, example: str) -> Policy:
    inner, slash, outer = text.partition("/")
    if not slash:
        raise PolicySpecError(f'hier needs a policy within racks and one between them, as in "{example}"')
    return Hierarchical(inner=parse_policy(inner), outer=parse_policy(outer))


def _stages(text: str, *, example: str) -> Policy:
    first, *later = _parts_of_stages(text)
    if any(part.partition(":")[0].strip().lower() == Switch.name for part in (first, *later)):
        raise PolicySpecError(f'"switch" cannot be switched to; write the stages one after another, as in "{example}"')
    if not later or any("@" not in stage for stage in later):
        raise PolicySpecError(
            f'switch needs policies and, after each but the first, the step at which it begins, as in "{example}"'
        )
    parts = [stage.rpartition("@") for stage in later]
    return Switch(
        policies=tuple(parse_policy(spec) for spec in (first, *(spec for spec, _, _ in parts))),
        clocks=tuple(_read("step", read=whole, value=clock.strip()) for _, _, clock in parts),
    )


def _parts_of_stages(text: str) -> list[str]:
    """Split a schedule's text at each "/" between stages; a `Hierarchical` stage has one of its own."""
    stages: list[str] = []
    levels = False
    for part in text.split("/"):
        if levels:
            stages[-1] += f"/{part}"
        else:
            stages.append(part)
        levels = not levels and part.partition(":")[0].strip().lower() == Hierarchical.name
    return stages


def _argument(form: _Form, *, name: str, colon: str, value: str) -> dict[str, Any]:
    field = form.policy._argument
    if field is None:
        if colon:
            raise PolicySpecError(f'{name} takes no ":{value}"; write it as in "{form.example}"')
        return {}
    if not value:
        raise PolicySpecError(f'{name} needs its {field}, as in "{form.example}"')
    return {field: _read(field, read=_keys(name)[field][1], value=value)}


def _options(form: _Form, *, name: str, options: list[str]) -> dict[str, Any]:
    keys = {key: found for key, found in _keys(name).items() if key != form.policy._argument}
    values: dict[str, Any] = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if key not in keys:
            raise PolicySpecError(f'unknown key "{key}"; {nearest(key, keys)}')
        if not (equals and value):
            raise PolicySpecError(f'"{option}" has no value; write "{key}=..."')
        field, read = keys[key]
        if field in values:
            raise PolicySpecError(f'"{key}" is given twice; write it once')
        values[field] = _read(key, read=read, value=value)
    return values


def _read(key: str, *, read: Callable[[str], Any], value: str) -> Any:
    try:
        return read(value)
    except ValueError:
        raise PolicySpecError(f'{key} is "{value}"; write {_WORDS.get(read, "a whole number")}') from None


def describe(policy: Policy) -> str:
    """Describe in one plain sentence how workers train under the policy.

    >>> describe(BSP())
    'Every step waits for all workers and applies the mean of their gradients.'
    """
    # special cases come before the general one of their class
    match policy:
        case FSDP():
            held = "of which each holds and steps its own part"
            copied = f"; every {_steps(policy.mirror)} it copies another one's" if policy.mirror else ""
            return f"Every step waits for all workers and applies the mean of their gradients, {held}{copied}."
        case PostLocalSGD():
            first = f"Gradients are averaged for {_steps(policy.warmup)}; then w" if policy.warmup else "W"
            return (
                f"{first}orkers train alone and average their parameters every {_steps(policy.period)} (torch's own)."
            )
        case BSP(hook=hook) if hook is not None:
            return (
                f"Every step waits for all workers and applies the mean of their gradients (torch's {hook.spec} hook)."
            )
        case BSP(backup=number) if number:
            slowest = "slowest" if number == 1 else f"{number} slowest"
            return (
                f"Every step waits for all workers but the {slowest} and applies the mean of their gradients; what "
                "comes later is dropped, and its samples are dealt out again."
            )
        case BSP() | Delayed(delay=0):
            sent = _sent_as(policy.compression)
            return f"Every step waits for all workers and applies the mean of their gradients{sent}."
        case Delayed():
            return (
                f"Every step applies the mean of the workers' gradients of {_steps(policy.delay)} before"
                f"{_sent_as(policy.compression)}."
            )
        case SSP(bound=0):
            return f"Every step waits for all workers and applies the mean of their {policy.update}s."
        case SSP() | ASP():
            return _describe_asynchronous(policy)
        case LocalSGD(delay=0):
            sent = _sent_as(policy.compression)
            return (
                f"Workers train alone for {_steps(policy.period)}, then wait and average their parameters{sent}"
                f"{_made_of_a_mean(policy)}."
            )
        case DiLoCo():
            return _describe_diloco(policy)
        case Hierarchical():
            within = "Workers of a rack wait for each other at every step and apply the mean of their gradients"
            return f"{within}; {_describe_between_racks(policy)}."
        case Switch():
            return " ".join(_describe_stages(policy))
        case Adaptive():
            return "Workers exchange as seldom as the network needs and training affords: every step, or every few."
        case LocalSGD():
            return (
                f"Workers average their parameters every {_every(policy.period)}, "
                f"while they train on for {_steps(policy.delay)}{_sent_as(policy.compression)}"
                f"{_made_of_a_mean(policy)}."
            )
    raise PolicySpecError(f"no description of {policy!r}; known: {', '.join(_FORMS)}")


def _describe_diloco(policy: DiLoCo) -> str:
    part = "" if policy.fragments == 1 else f", one of {policy.fragments} fragments of the parameters"
    behind = f", while they train on for {_steps(policy.delay)}" if policy.delay else ""
    if policy.exchange == "store":
        few = "each" if policy.quorum == 1 else f"the mean of {policy.quorum} or more"
        return (
            f"Workers train alone and exchange every {_every(policy.period)}{part}{behind}; {few} of what they come to "
            f"is the gradient of an outer optimizer{_sent_as(policy.compression)}, and no worker waits for more."
        )
    return (
        f"Workers train alone and exchange every {_every(policy.period)}{part}{behind}; the mean of what they came to "
        f"is the gradient of an outer optimizer{_sent_as(policy.compression)}."
    )


def _describe_between_racks(policy: Hierarchical) -> str:
    outer = policy.outer
    if isinstance(outer, SSP) and outer.synchronous:
        return f"racks do the same among each other with their {outer.update}s, on the store"
    if isinstance(outer, SSP | ASP):
        sentence = _describe_asynchronous(outer, who="rack").removesuffix(".")
        return sentence[0].lower() + sentence[1:].replace("; each", ", and each")
    behind = f", while they train on for {_steps(policy.delay)}" if policy.delay else ""
    return f"racks average their parameters every {_every(policy.period)}{behind}{_sent_as(policy.compression)}"


def _describe_asynchronous(policy: SSP | ASP, *, who: str = "worker") -> str:
    wait = (
        f"No {who} ever waits for another"
        if math.isinf(policy.bound)
        else f"No {who} begins a step more than {_steps(int(policy.bound))} ahead of the slowest"
    )
    behind = f", while it trains on for {_steps(policy.delay)}," if policy.delay else ""
    send = f"each sends its {policy.update} every {_every(policy.period)}{behind} and it is applied as it arrives"
    weight = "" if policy.weighting == UNWEIGHTED else f", weighted by its staleness ({policy.weighting.spec})"
    rate = "" if policy.rate == "divided" else ", at the whole learning rate"
    return f"{wait}; {send}{weight}{rate}{_sent_as(policy.compression)}."


def _made_of_a_mean(policy: LocalSGD) -> str:
    return ", which is taken at full length where their steps were short" if policy.outer_step else ""


def _describe_stages(policy: Switch) -> list[str]:
    later = zip(policy.policies[1:], policy.clocks, strict=True)
    return [describe(policy.first), *(f"From step {clock + 1} on: {describe(stage)}" for stage, clock in later)]


def _sent_as(compression: Compression) -> str:
    return "" if compression == NO_COMPRESSION else f", sent as {compression.spec}"


def _every(number: int) -> str:
    return "step" if number == 1 else _steps(number)


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"
