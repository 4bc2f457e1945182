"""An estimate from the words that a person has: a model's name, a machine's, and what is known of the layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from plesio.core.charts import Chart, Table
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import FieldsOf, Written, checked, inputs_of
from plesio.core.within import Within
from plesio_planning.estimate.capacity import that_fits
from plesio_planning.estimate.constants import CONSTANTS
from plesio_planning.estimate.effects import check_effects
from plesio_planning.estimate.exports.file_format import ImportedRun
from plesio_planning.estimate.failures import RunOnFailingDevices, run_on_failing_devices
from plesio_planning.estimate.frontier import Frontier, find_frontier
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, SoftwareName
from plesio_planning.estimate.model import Convolutional, Model
from plesio_planning.estimate.named_models import find_model
from plesio_planning.estimate.options import FIELDS, RunOptions
from plesio_planning.estimate.own_constants import OwnConstants, calibrate_to, calibrated
from plesio_planning.estimate.own_steps import read_own_steps
from plesio_planning.estimate.plan_charts import plan_charts, plan_finding, plan_tables
from plesio_planning.estimate.plans import RunPlans, find_plans
from plesio_planning.estimate.run_plan import Limits
from plesio_planning.estimate.search_charts import search_charts, search_finding, search_tables
from plesio_planning.estimate.sensitivity import Sensitivity, tornado
from plesio_planning.estimate.sites import RunOverSites, Sites, run_over_sites
from plesio_planning.estimate.training import Conditions, Training, estimate_training
from plesio_planning.estimate.training_charts import training_charts, training_finding, training_tables
from plesio_planning.estimate.usual_software import usual_software

_BATCH_TOKENS = 2**22
"""Tokens of a step, if nobody says: about the 4M of Llama 2 (Touvron et al. 2023b)."""
_TOP = 10
"""Layouts that a search shows, if nobody says."""
_NOT_OF_STEPS = {
    *("calibrate", "export", "failures", "search", "top", "num_devices", "accelerators"),
    *(field.name for owner in (Limits, Sites) for field in fields(owner)),
}
"""Inputs that measured steps do not have."""
_BATCH_IMAGES = 32
"""Images of a device (Goyal et al. 2017)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that is shown of an estimate.

    Attributes:
        frontier: Searched layouts; None if the layout was given.
        plans: Plans that keep to limits, of which the training is the best; None if the machine was given.
        top: Layouts of the search that are shown.
        why_software: A sentence about the program that was chosen; empty if it was given.
        failures: The run on devices that fail; None if nobody asked.
        over_sites: The run over several sites; None if nobody asked.
        calibration: Constants of one's own steps; None if there are none.
        uncalibrated: The run with published constants, where there are others.
        exported: The layout as a file of a training program; empty if nobody asked.
        unread: Names in an imported file that nothing is read from.
    """

    training: Training
    sensitivities: tuple[Sensitivity, ...]
    frontier: Frontier | None = None
    plans: RunPlans | None = None
    top: int = _TOP
    why_software: str = ""
    failures: RunOnFailingDevices | None = None
    over_sites: RunOverSites | None = None
    calibration: OwnConstants | None = None
    uncalibrated: Training | None = None
    exported: str = ""
    unread: tuple[str, ...] = ()

    @property
    def findings(self) -> Sequence[str]:
        """The plans', the run's with its notes, the search's, and that of failures."""
        found = [] if self.plans is None else [plan_finding(self.plans)]
        if self.calibration is not None and self.uncalibrated is not None:
            found.append(self.calibration.finding(self.uncalibrated, self.training))
        notes = self.training.notes if self.calibration is None else []
        found += [training_finding(self.training, self.sensitivities), self.why_software, *notes]
        if self.frontier is not None:
            found.append(search_finding(self.training, self.frontier))
        found += [more.finding for more in (self.over_sites, self.failures) if more is not None]
        return [sentence for sentence in found if sentence]

    @property
    def tables(self) -> Sequence[Table]:
        """The plans' or the search's, then the run's, then those of failures."""
        found = [] if self.plans is None else [*plan_tables(self.plans)]
        found += [] if self.calibration is None else self.calibration.tables
        if self.frontier is not None:
            found += search_tables(self.training, self.frontier, top=self.top)
        found += [] if self.over_sites is None else self.over_sites.tables
        found += training_tables(self.training, self.sensitivities)
        return found if self.failures is None else [*found, *self.failures.tables]

    @property
    def charts(self) -> Sequence[Chart]:
        """The plans' or the search's, then the run's, then those of failures."""
        found = [] if self.plans is None else [*plan_charts(self.plans)]
        if self.frontier is not None:
            found += search_charts(self.training, self.frontier)
        found += [] if self.over_sites is None else self.over_sites.charts
        found += training_charts(self.training, self.sensitivities)
        return found if self.failures is None else [*found, *self.failures.charts]


@checked
def estimate(
    on_progress: Callable[[str, int, int], None] = lambda machine, done, total: None,
    /,
    *,
    model: Annotated[str | None, Written(metavar="NAME|FILE")] = None,
    cluster: Annotated[str | None, Written(metavar="NxNAME")] = None,
    tokens: float,
    global_batch: Annotated[int | None, Written(option="batch")] = None,
    software: Annotated[Literal[SoftwareName, "auto"], Written(metavar="NAME")] = "current",
    year: Annotated[int | None, Within(2017, 2100), Written(instead="two years after the accelerator came out")] = None,
    gradients: Literal["fp32", "bf16"] | None = None,
    **options: Annotated[Any, FieldsOf(FIELDS)],
) -> Estimate:
    """Estimate time, memory, cost and energy of a training run.

    From the model, the machine and how one is laid out over the other; or with the fastest layout of all; or the
    machines that keep to a day and a budget. Needs no accelerator.

    >>> run = estimate(model="llama-70b", cluster="2048xh100", tokens=2e12, tp=8, pp=4).training
    >>> run.num_steps, round(run.goodput.share, 2)
    (476838, 0.98)

    Args:
        on_progress: Called now and then in a search: a machine's name, the layouts tried on it, and all of them.
        model: llama-70b, or a config.json; without, the sizes say it.
        cluster: 2048xh100, or 16x4a100: hosts of 4; with a day or a budget the most that there is.
        tokens: Tokens to train with: 2T, 300B; images of a CNN.
        global_batch: Sequences (images) of a step; else about 4M tokens, 32 images a device.
        software: current, megatron-core, megatron-2022, megatron-2021, megatron-deepspeed-2022, fsdp-2023,
            deepspeed-2021; auto: the one that ran such a layout in that year.
        year: Year of the run, for auto.
        gradients: Precision in which gradients are kept and exchanged; else the software's.
        options: Fields of `ClusterLinks`, `Limits`, `Exploration`, `ProgramFiles`, `Sites`, `Layout`, `Transformer`,
            `Software` and `Conditions`.

    Raises:
        ConfigError: A name that is unknown, a layout that cannot be or does not fit, or a number out of range.
    """
    asked = RunOptions.of(options, gradients=gradients)
    machines = asked.machines(cluster)
    machine, imported = machines[0], asked.files.imported()
    named, why = _program(software, machine, zero=asked.layout.get("zero", 1 if asked.laid_out else None), year=year)
    usual = replace(SOFTWARE[named], **imported.settings)
    transformer = find_model(model, **_sizes(model, imported, asked.sizes))
    layout = imported.layout_on(machine.num_devices, num_layers=getattr(transformer, "num_layers", 1))
    run = _Run(
        model=transformer,
        tokens=tokens,
        global_batch=imported.global_batch if global_batch is None else global_batch,
        conditions=asked.conditions,
        given={**layout, **asked.layout, "software": replace(usual, **asked.settings)},
        # only a program whose settings were left open may be replaced by the lean one
        may_be_lean=not imported.settings and asked.settings_may_be_lean,
    )
    if asked.files.calibrate is not None:
        same = {"model": model, "cluster": cluster, "tokens": tokens, "global_batch": global_batch}
        same |= {"software": software, "year": year, "gradients": gradients, **options, "any_memory": True}
        run = replace(run, calibration=_own_constants(Path(asked.files.calibrate), same))
    if asked.laid_out:
        found = run.laid_out(machine, any_memory=asked.exploration.any_memory)
        # an option that changed nothing is refused, rather than taken in silence
        check_effects(found.training, usual=usual, settings=asked.settings, model=model, sizes=asked.sizes)
    elif asked.limits.given:
        numbers = asked.exploration.num_devices or (None if cluster is None else machine.num_devices)
        found = run.planned(machines, asked.limits, numbers=numbers, on_progress=on_progress)
    else:
        found = run.searched(machines, top=asked.exploration.top or _TOP, on_progress=on_progress)
    return _completed(replace(found, why_software=why, unread=imported.unread), asked)


def _completed(found: Estimate, asked: RunOptions) -> Estimate:
    """Add what is asked for beside the run: sites, failures, and the file of a program."""
    training = found.training
    return replace(
        found,
        over_sites=run_over_sites(training, asked.sites) if asked.sites.num_sites > 1 else None,
        failures=run_on_failing_devices(training) if asked.exploration.failures else None,
        exported=asked.files.exported(training.model, training.layout, global_batch=training.step.num_samples),
    )


def _program(
    software: Literal[SoftwareName, "auto"], machine: Machine, *, zero: int | None, year: int | None
) -> tuple[SoftwareName, str]:
    """Return the name of the program, and a sentence about it if it was chosen."""
    if software == "auto":
        return usual_software(machine, zero=zero, year=year)
    if year is not None:
        raise ArgumentError("`year` chooses among programs; write `software = auto`, or leave it out")
    return software, ""


def _own_constants(path: Path, asked: Mapping[str, Any]) -> OwnConstants:
    """Return constants that are fitted to measured steps: each of a layout, with the other inputs as ``asked``."""
    asked = {name: value for name, value in asked.items() if value is not None and name not in _NOT_OF_STEPS}
    steps = []
    for number, own in enumerate(read_own_steps(path, inputs_of(estimate)), start=1):
        if "cluster" not in asked and "cluster" not in own.given:
            raise ConfigError(f"{path}, row {number}: there is no cluster; add a column cluster, or `--cluster`")
        try:
            steps.append((estimate(**{**asked, **own.given}).training, own.step_s))
        except ConfigError as error:
            raise ConfigError(f"{path}, row {number}: {error}") from None
    try:
        return calibrate_to(steps)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _sizes(model: str | None, imported: ImportedRun, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sizes that were given, and those of a file: of a model with a name only its sequences' length."""
    from_file = imported.sizes
    if model is not None:
        from_file = {name: value for name, value in from_file.items() if name == "sequence_length"}
    return {**from_file, **given}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A training run without a machine.

    Attributes:
        tokens: Tokens (images) to train with.
        global_batch: Sequences (images) of a step; None for the default.
        given: The layout's attributes that are given, its software always, by name.
        may_be_lean: Whether the program may keep less where nothing else fits.
        calibration: Constants of one's own steps; None if there are none.
    """

    model: Model
    tokens: float
    global_batch: int | None
    conditions: Conditions
    given: Mapping[str, Any]
    may_be_lean: bool
    calibration: OwnConstants | None = None

    def searched(
        self, machines: Sequence[Machine], *, top: int, on_progress: Callable[[str, int, int], None]
    ) -> Estimate:
        """Find the fastest layout on the first machine, and the frontier of all."""
        frontier = find_frontier(
            self.model,
            machines,
            global_batch=self._batch(machines[0]),
            near=self.global_batch is None,
            fixed=self.given,
            may_be_lean=self.may_be_lean,
            top=top,
            on_progress=on_progress,
            tokens=self.tokens,
            conditions=self.conditions,
            calibration=self.calibration,
        )
        return replace(self._estimate(frontier.on(machines[0])), frontier=frontier, top=top)

    def planned(
        self,
        machines: Sequence[Machine],
        limits: Limits,
        *,
        numbers: Sequence[int] | int | None,
        on_progress: Callable[[str, int, int], None],
    ) -> Estimate:
        """Find the plans that keep to the limits, on so many devices, or at most as many, of these kinds."""
        plans = find_plans(
            self.model,
            machines,
            limits=limits,
            tokens=self.tokens,
            global_batch=self._batch(machines[0]),
            near=self.global_batch is None,
            fixed=self.given,
            may_be_lean=self.may_be_lean,
            conditions=self.conditions,
            calibration=self.calibration,
            **({} if numbers is None else {"num_devices": numbers}),
            on_progress=on_progress,
        )
        return replace(self._estimate(plans.best.training), plans=plans)

    def laid_out(self, machine: Machine, *, any_memory: bool) -> Estimate:
        """Estimate the layout that is given, with replicas on the devices that remain."""
        layout = self._layout(machine)
        global_batch = self._batch(machine, multiple_of=layout.batch_unit)
        if self.may_be_lean:
            layout = that_fits(self.model, layout, machine, global_batch=global_batch)
        training = estimate_training(
            self.model,
            layout,
            machine,
            global_batch=global_batch,
            tokens=self.tokens,
            conditions=self.conditions,
            any_memory=any_memory,
        )
        return self._estimate(training if self.calibration is None else calibrated(training, self.calibration))

    def _estimate(self, training: Training) -> Estimate:
        """Return what is shown of a run; beside one with constants of one's own steps, that with the published ones."""
        usual = None
        if self.calibration is not None:
            usual = training.again(conditions=self.conditions, constants=CONSTANTS)
        return Estimate(
            training=training, sensitivities=tornado(training), calibration=self.calibration, uncalibrated=usual
        )

    def _layout(self, machine: Machine) -> Layout:
        tp = self.given.get("tp", 1)
        replica = tp * self.given.get("pp", 1) * self.given.get("cp", 1)
        remaining = {"dp": max(machine.num_devices // max(replica, 1), 1), "zero": 1}
        return Layout(**{**remaining, "sequence_parallel": tp > 1, **self.given})

    def _batch(self, machine: Machine, *, multiple_of: int = 1) -> int:
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.model, Convolutional):
            wanted = _BATCH_IMAGES * machine.num_devices
        else:
            wanted = max(_BATCH_TOKENS // self.model.sequence_length, 1)
        return -(-wanted // multiple_of) * multiple_of
