"""The inverse question: the machines that end a run by a day, and for a sum, with the chance that they do.

A plan (`plesio_planning.estimate.run_plan`) is a number of accelerators of a kind with the fastest layout found for it.
Layouts are searched on one machine of each kind, in a part of the space, and the fastest of each tensor and pipeline
parallelism are tried on machines of other sizes. If none of them fits, the whole space is searched: on each size if
sizes are given or kinds are few, and else only if none of a kind's sizes has room. Small machines of few kinds are
always searched so, if no larger one may be had (``docs/planning/index.md``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.exploration import of_size
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout
from plesio_planning.estimate.model import Convolutional, Model
from plesio_planning.estimate.own_constants import OwnConstants, estimate_own
from plesio_planning.estimate.run_plan import Limits, RunPlan
from plesio_planning.estimate.search import fastest_layout, search_layouts, working_layouts
from plesio_planning.estimate.search_space import layouts_of
from plesio_planning.estimate.search_walk import LayoutQuestion, Walk
from plesio_planning.estimate.training import Conditions, Training

_DAY_S = 86_400.0
_MOST_DEVICES = 32_768
_NO_CHANCE = 0.01
"""Chance below which a plan is none."""
_NO_ROOM, _NO_LAYOUT = "short of memory", "without such a layout"
_NOT_WHOLE = "not in whole hosts of such numbers"
_AT_BEST = 2.0
"""Factor by which a run may beat what is expected of it, for the bounds that leave machines out."""
_RANGE = 12
"""Largest number of devices that is tried, over the smallest that could do."""
_SHAPES = 20
"""Layouts that are carried from one size of a machine to others."""
_SMALL = 32
"""Devices of the largest machine that is always searched as a whole, where no larger one may be had."""
_FEW_KINDS = 3
"""Kinds of machines for which whole searches take a few seconds together."""
_LARGEST_MICRO_BATCH = 2
_LONG_SEQUENCE = 16_384
_EXPERTS_A_DEVICE = 4
_MOST_STAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOfChange:
    """The difference that a change would make.

    Attributes:
        what: The change in words.
        same: The plan on the machine that was chosen, after the change.
        best: The best plan after the change, perhaps on another machine.
    """

    what: str
    same: RunPlan
    best: RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlans:
    """All plans that were tried.

    Attributes:
        limits: The time and the money that were asked for.
        plans: A plan for each machine on which it has a chance, the best first.
        refused: Why no machine of a kind is among them, by accelerator.
        changes: The worth of a week, of money, and of the network.
    """

    limits: Limits
    plans: tuple[RunPlan, ...]
    refused: Mapping[str, str]
    changes: tuple[WorthOfChange, ...]

    @property
    def best(self) -> RunPlan:
        """The cheapest plan that is sure enough (the fastest, without a day), else the likeliest."""
        return self.plans[0]

    @property
    def best_by_kind(self) -> Sequence[RunPlan]:
        """The best plan of each accelerator, the best first."""
        found: dict[str, RunPlan] = {}
        for plan in self.plans:
            found.setdefault(plan.training.machine.accelerator.name, plan)
        return tuple(found.values())

    def of_kind(self, name: str) -> Sequence[RunPlan]:
        """Return the plans with this accelerator, the smallest machine first."""
        own = (plan for plan in self.plans if plan.training.machine.accelerator.name == name)
        return sorted(own, key=lambda plan: plan.training.machine.num_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A run without a machine, and the limits that it has to keep to.

    Attributes:
        fixed: The layout's attributes that are given.
        calibration: Constants of one's own steps; None if there are none.
        how: Arguments of `search_layouts`.
    """

    model: Model
    tokens: float
    limits: Limits
    conditions: Conditions
    fixed: Mapping[str, Any]
    calibration: OwnConstants | None
    how: Mapping[str, Any]

    @property
    def constants(self) -> Constants:
        """The constants of one's own steps, else the published ones."""
        return CONSTANTS if self.calibration is None else self.calibration.constants

    def at_best_s(self, machine: Machine) -> float:
        """Return the seconds of the run at a rate that no layout reaches on one device, with the margin."""
        accelerator, precision = machine.accelerator, self.fixed.get("precision", "bf16")
        shares = self.constants.fp8_efficiency if precision == "fp8" else self.constants.matrix_efficiency
        samples = self.tokens / self.model.tokens_per_sample
        rate = accelerator.peak(precision) * shares.get(accelerator.architecture, 1.0)
        return samples * self.model.model_flops / rate * self.limits.margin_and_error[0] / _AT_BEST

    def numbers(self, machine: Machine, *, most: int) -> list[int]:
        """Return the numbers of devices to try: powers of two, and halfway between, of whole hosts."""
        at_best_s = self.at_best_s(machine)
        fewest = at_best_s / self.limits.seconds
        host = 1 if machine.accelerator.own_adapters else machine.devices_per_host
        powers = range(most.bit_length())
        grid = {2**power for power in powers if 2**power < host}
        grid |= {number * host * 2**power // 2 for power in range(1, most.bit_length()) for number in (2, 3)} | {host}
        tried = sorted(number for number in grid | {most} if fewest <= number <= most and _whole(number, machine))
        if self.limits.by is None:
            return tried
        return [number for number in tried if number <= _RANGE * max(tried[0], fewest)] if tried else []

    def training(self, machine: Machine, layouts: Sequence[Layout]) -> Training | None:
        """Return the run in the fastest of these layouts that works on the machine."""
        found = working_layouts(self._question(machine), list(_on(machine, layouts)))
        if not found:
            return None
        try:
            return estimate_own(
                self.model,
                found[0].layout,
                machine,
                global_batch=found[0].step.num_samples,
                tokens=self.tokens,
                conditions=self.conditions,
                calibration=self.calibration,
            )
        except ConfigError:
            return None  # it would hardly ever end

    def shapes(self, machine: Machine) -> list[Layout]:
        """Return the fastest layouts of this machine, one for each tensor and pipeline parallelism and recomputation.

        Their program is the one that was given, as another machine may need no lean one.
        """
        found = working_layouts(self._question(machine), list(self._space(machine)))
        best: dict[tuple[Any, ...], Layout] = {}
        for one in found:
            layout = one.layout
            best.setdefault((layout.tp, layout.pp, layout.recomputation, layout.zero, layout.shard is None), layout)
        return [self._as_given(layout) for layout in list(best.values())[:_SHAPES]]

    def fastest(self, machine: Machine) -> list[Layout]:
        """Return the fastest layout of the whole space, with the program that was given; empty if nothing fits."""
        found = fastest_layout(self._question(machine))
        return [] if found is None else [self._as_given(found.layout)]

    def why_none(self, machine: Machine) -> str:
        """Return why a machine has no plan: nothing fits, nothing can be laid out, or no run ends."""
        walk = Walk(self._question(machine))
        walk.go()
        if walk.candidates:
            return "failing too often"
        return _NO_ROOM if walk.num_too_large else _NO_LAYOUT

    def refuse(self, machine: Machine) -> None:
        """Raise the search's refusal of a machine on which nothing works, with what would."""
        search_layouts(self.model, machine, fixed=self.fixed, top=1, **self.how)

    def _as_given(self, layout: Layout) -> Layout:
        return replace(layout, software=self.fixed.get("software", SOFTWARE["current"]))

    def _question(self, machine: Machine) -> LayoutQuestion:
        """Return the search on a machine, with the batch next to the one that is wanted that its devices divide.

        So all layouts have that one. Where devices are too many for it each has one of its own.
        """
        wanted, near, devices = self.how["global_batch"], self.how["near"], machine.num_devices
        if near and devices <= 2 * wanted:
            wanted, near = max(round(wanted / devices), 1) * devices, False
        return LayoutQuestion(
            model=self.model,
            machine=machine,
            wanted=wanted,
            near=near,
            may_be_lean=self.how["may_be_lean"],
            fixed=self.fixed,
            constants=self.constants,
        )

    def _space(self, machine: Machine) -> Iterator[Layout]:
        fixed = dict(self.fixed)
        if not isinstance(self.model, Convolutional) and self.model.sequence_length <= _LONG_SEQUENCE:
            fixed.setdefault("cp", 1)
        sharings: list[dict[str, Any]] = [{}] if "zero" in fixed else [{"zero": 1}, {"zero": 3, "pp": 1}]
        recomputations = ["none"] if isinstance(self.model, Convolutional) else ["none", "full"]
        for sharing, recomputation in product(sharings, recomputations):
            way = sharing | ({} if "recomputation" in fixed else {"recomputation": recomputation})
            if any(fixed.get(name, value) != value for name, value in way.items()):
                continue
            space = layouts_of(
                self.model, machine, global_batch=self._question(machine).wanted, near=False, fixed={**way, **fixed}
            )
            yield from (layout for layout in space if self._worth_trying(layout))

    def _worth_trying(self, layout: Layout) -> bool:
        if isinstance(self.model, Convolutional):
            return True
        layers = -(-self.model.num_layers // layout.pp)
        few_experts = 2 <= self.model.num_experts // layout.ep <= _EXPERTS_A_DEVICE
        few = {
            "schedule": layout.schedule == "1f1b",
            "pp": layout.pp <= _MOST_STAGES,
            "vpp": layout.vpp in (1, layers),
            "micro_batch": layout.micro_batch <= _LARGEST_MICRO_BATCH,
            "ep": self.model.num_experts == 1 or few_experts or layout.ep == layout.dp * layout.cp,
        }
        return all(kept for name, kept in few.items() if name not in self.fixed)


def _whole(number: int, machine: Machine) -> bool:
    """Return whether so many devices are whole hosts of the machine's, or a part of one."""
    if machine.accelerator.own_adapters:
        return machine.accelerator.fills_hosts(number)
    return number < machine.devices_per_host or number % machine.devices_per_host == 0


def _on(machine: Machine, layouts: Sequence[Layout]) -> Iterator[Layout]:
    """Yield the layouts with as many replicas as the machine has room for."""
    for layout in layouts:
        replica = layout.tp * layout.pp * layout.cp
        if machine.num_devices % replica == 0:
            yield replace(layout, dp=machine.num_devices // replica)


def find_plans(
    model: Model,
    machines: Sequence[Machine],
    *,
    limits: Limits,
    tokens: float,
    conditions: Conditions | None = None,
    calibration: OwnConstants | None = None,
    num_devices: Sequence[int] | int = _MOST_DEVICES,
    on_progress: Callable[[str, int, int], None] = lambda machine, done, total: None,
    **how: Any,
) -> RunPlans:
    """Find the machines that keep to the limits, with their layouts and chances.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> from plesio_planning.estimate.named_models import find_model
    >>> found = find_plans(
    ...     find_model("llama-3-8b"), [parse_machine("8xh100")], tokens=1e12, global_batch=512,
    ...     limits=Limits(start="2027-01-01", by="2027-02-01"),
    ... )
    >>> found.best.chance >= 0.9 and found.best.training.machine.name
    '64xh100'

    Args:
        model: Model to train.
        machines: A machine of each kind, of any size.
        limits: The time and the money that the run may take.
        tokens: Tokens (or images) to train with.
        conditions: Failures, storage, prices; None is the defaults.
        calibration: Constants of one's own steps; None is the published ones.
        num_devices: Numbers of devices to try; or the most of those that may do.
        on_progress: Called now and then with a machine's name, the kinds tried, and all of them.
        how: Arguments of `search_layouts`, as whether the batch may be near the one that is wanted (it may) or a
            program lean (it may).

    Raises:
        ConfigError: Nothing keeps to the limits, or fits into memory. One line, with the nearest or one with room.
    """
    asked = _Asked(
        model=model,
        tokens=tokens,
        limits=limits,
        conditions=conditions or Conditions(),
        fixed=how.pop("fixed", {}),
        calibration=calibration,
        how={"near": True, "may_be_lean": True, **how},
    )
    most = num_devices if isinstance(num_devices, int) else max(num_devices)
    few = len(machines) <= _FEW_KINDS
    plans: list[RunPlan] = []
    shapes: dict[str, list[Layout]] = {}
    refused: dict[str, str] = {}
    for done, machine in enumerate(machines):
        name = machine.accelerator.name
        on_progress(name, done, len(machines))
        given = () if isinstance(num_devices, int) else num_devices
        numbers = [one for one in given if _whole(one, machine)] if given else asked.numbers(machine, most=most)
        each = few or bool(given)
        found, shapes[name] = _plans_of_kind(asked, machine, numbers, each=each, few=few)
        plans += found
        if not any(plan.chance >= _NO_CHANCE for plan in found):
            refused[name] = _why_not(asked, machine, numbers, found) if numbers or not given else _NOT_WHOLE
    plans.sort(key=lambda plan: plan.order)
    likely = tuple(plan for plan in plans if plan.chance >= _NO_CHANCE)
    if not likely:
        if set(refused.values()) <= {_NO_ROOM, _NO_LAYOUT}:
            sizes = (of_size(machine, most) for machine in machines)
            asked.refuse(max(sizes, key=lambda one: one.num_devices * one.accelerator.memory_bytes))
        raise ArgumentError(_nothing(limits, plans, refused, most=most))
    changes = tuple(_changes(asked, likely, shapes[likely[0].training.machine.accelerator.name]))
    return RunPlans(limits=limits, plans=likely, refused=refused, changes=changes)


def _plans_of_kind(
    asked: _Asked, machine: Machine, numbers: Sequence[int], *, each: bool, few: bool
) -> tuple[list[RunPlan], list[Layout]]:
    """Return a plan for each number of devices, and the layouts that were tried on all of them.

    ``each``: each size without room is searched as a whole, and not only if all are without. ``few``: kinds are few
    enough for whole searches of small machines.
    """
    price = asked.conditions.price_of(machine.accelerator.price_per_h)
    if asked.at_best_s(machine) / 3600 * price > asked.limits.dollars:
        return [], []
    # a size about the middle is searched, of which the batch is a multiple; where nothing fits into it, a larger one
    shapes: list[Layout] = []
    middle = numbers[len(numbers) // 2 :]
    for number in sorted(middle, key=lambda one: one.bit_count() > 1):
        shapes = asked.shapes(of_size(machine, number))
        if shapes:
            break
    plans = _plans_of_shapes(asked, machine, numbers, shapes, each=each, few=few)
    if not plans and not each:
        plans = _plans_of_shapes(asked, machine, numbers, shapes, each=True, few=few)
    return plans, shapes


def _plans_of_shapes(
    asked: _Asked, machine: Machine, numbers: Sequence[int], shapes: list[Layout], *, each: bool, few: bool
) -> list[RunPlan]:
    """Return the plans in the fastest of the layouts, and add those of the sizes that are searched as a whole."""
    plans: list[RunPlan] = []
    small = few and max(numbers, default=0) <= _SMALL
    for number in numbers:
        sized = of_size(machine, number)
        training = None if small else asked.training(sized, shapes)
        if training is None and each and (fastest := asked.fastest(sized)):
            shapes += fastest
            training = asked.training(sized, shapes)
        if training is None:
            continue
        plans.append(RunPlan.of(training, asked.limits))
        if plans[-1].within_budget < _NO_CHANCE:
            break  # more devices cost more
    return plans


def _why_not(asked: _Asked, machine: Machine, numbers: Sequence[int], found: Sequence[RunPlan]) -> str:
    if not numbers:
        return "too slow"
    if found:
        late = min(plan.total_s for plan in found) > asked.limits.seconds
        return "too slow" if late else "too dear"
    price = asked.conditions.price_of(machine.accelerator.price_per_h)
    if asked.at_best_s(machine) / 3600 * price > asked.limits.dollars:
        return "too dear"
    return asked.why_none(of_size(machine, numbers[-1]))


def _nothing(limits: Limits, plans: Sequence[RunPlan], refused: Mapping[str, str], *, most: int) -> str:
    wanted = [f"by {limits.by}"] * (limits.by is not None)
    wanted += [f"for ${limits.dollars:,.0f}"] * (limits.budget_dollars is not None)
    nearest = ""
    if plans:
        plan = max(plans, key=lambda one: one.chance)
        nearest = (
            f"; the nearest is {plan.training.machine.name}, {plan.total_s / _DAY_S:.3g} days and ${plan.cost:,.0f}"
        )
    why = ", ".join(f"{name} is {reason}" for name, reason in refused.items())
    less = [f"`{name}`" for name in ("by", "budget_dollars") if getattr(limits, name) is not None]
    return (
        f"no machine of up to {most:,} devices trains it {' '.join(wanted)}{nearest}"
        f"{f' ({why})' if why else ''}; write another {' or '.join(less)}, or fewer tokens"
    )


def _changes(asked: _Asked, plans: Sequence[RunPlan], shapes: Sequence[Layout]) -> Iterator[WorthOfChange]:
    """Yield the worth of a week, of money, of the network and of failures; each with all plans anew."""
    limits, best = asked.limits, plans[0]
    others: list[tuple[str, Limits]] = []
    if limits.by is not None:
        others = [("a week more", limits.later(7))]
        if limits.seconds > 7 * _DAY_S:
            others.append(("a week less", limits.later(-7)))
    if limits.budget_dollars is not None:
        others.append(("a tenth more money", replace(limits, budget_dollars=1.1 * limits.budget_dollars)))
    for what, changed in others:
        anew = [RunPlan.of(plan.training, changed) for plan in plans]
        yield WorthOfChange(what=what, same=anew[0], best=min(anew, key=lambda plan: plan.order))
    # what is of the machine is tried on those of the same kind
    kind = best.training.machine.accelerator
    own = [plan for plan in plans if plan.training.machine.accelerator == kind]
    for what, factor in (("half the network between hosts", 0.5), ("twice that network", 2.0)):
        anew = [again for plan in own if (again := _with_network(asked, plan, shapes, factor)) is not None]
        if anew and any(plan.training.machine.num_hosts > 1 for plan in own):
            yield WorthOfChange(what=what, same=_like(best, anew), best=min(anew, key=lambda plan: plan.order))
    often = replace(asked.conditions, device_mtbf_s=asked.conditions.device_mtbf_s / 2)
    asked = replace(asked, conditions=often)
    anew = [again for plan in own if (again := _with_network(asked, plan, shapes, 1.0)) is not None]
    if anew:
        yield WorthOfChange(
            what="twice the failures", same=_like(best, anew), best=min(anew, key=lambda one: one.order)
        )


def _with_network(asked: _Asked, plan: RunPlan, shapes: Sequence[Layout], factor: float) -> RunPlan | None:
    machine = plan.training.machine
    faster = replace(machine.nic, bytes_per_s=factor * machine.nic.bytes_per_s)
    training = asked.training(replace(machine, nic=faster), shapes)
    return None if training is None else RunPlan.of(training, asked.limits)


def _like(best: RunPlan, plans: Sequence[RunPlan]) -> RunPlan:
    """Return the plan of as many devices, or the largest."""
    number = best.training.machine.num_devices
    return next((plan for plan in plans if plan.training.machine.num_devices == number), plans[-1])
