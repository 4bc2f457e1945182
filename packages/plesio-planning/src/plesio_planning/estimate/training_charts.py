"""An estimate in words, tables and charts (`plesio.core.charts`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plesio.core.charts import Axis, BarChart, Chart, RangeChart, Table
from plesio.core.units import format_bytes, format_count, format_seconds
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.memory import Memory, estimate_memory
from plesio_planning.estimate.model import Convolutional
from plesio_planning.estimate.sensitivity import CHANGE, Sensitivity, best_upgrade, bottleneck
from plesio_planning.estimate.training import Training

_PARTS = {
    "matrix": "matrix products",
    "elements": "operations on single elements",
    "recompute": "recomputation",
    "tensor": "tensor-parallel exchanges",
    "context": "context-parallel exchanges",
    "expert": "experts' exchanges",
    "launch": "waiting for the host",
    "offload": "activations from the host",
    "send": "sends between stages",
    "bubble": "pipeline bubble",
    "gradient": "gradient exchange",
}
_DAY_S = 86_400.0
_GIB = 2**30


def name_of_part(part: str) -> str:
    """Name a part of a run's time."""
    return _PARTS.get(part, part)


def format_days(seconds: float) -> str:
    """Write days with three significant digits, or less than one by `format_seconds`.

    >>> format_days(2 * 86400), format_days(3600)
    ('2 days', '1 h 0 min')
    """
    if seconds < _DAY_S:
        return format_seconds(seconds)
    days = seconds / _DAY_S
    return f"{days:.3g} days" if days < 999.5 else f"{days:,.0f} days"


def format_dollars(dollars: float) -> str:
    """Write US dollars with three significant digits.

    >>> format_dollars(2_047_239), format_dollars(12)
    ('$2.05M', '$12')
    """
    return f"${format_count(dollars)}"


def format_amount(value: float) -> str:
    """Write a number with three significant digits, or whole and with commas from a thousand on.

    >>> format_amount(13.46), format_amount(40_415.3)
    ('13.5', '40,415')
    """
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def format_gib(num_bytes: float) -> str:
    """Write memory as devices are sold, in powers of 1024.

    >>> format_gib(80 * 2**30)
    '80 GiB'
    """
    return f"{num_bytes / _GIB:.3g} GiB"


def format_layout(layout: Layout) -> str:
    """Write the degrees that are not 1, ZeRO, micro-batch, recomputation, and a program's that is leaner than usual.

    >>> format_layout(Layout(tp=8, dp=4, zero=1, sequence_parallel=True, recomputation="full"))
    'tp 8, dp 4, zero 1, micro-batch 1, full recomputation'
    """
    degrees = [
        f"{name} {value}"
        for name in ("tp", "pp", "vpp", "dp", "ep", "etp", "cp")
        if (value := getattr(layout, name) or 1) > 1
    ]
    if layout.schedule != "1f1b":
        degrees.append(layout.schedule)
    shared = "" if layout.shard is None else f" among {layout.shard}"
    rest = [f"zero {layout.zero}{shared}", f"micro-batch {layout.micro_batch}"]
    of = "" if layout.recomputed_layers is None else f" of {layout.recomputed_layers} layers"
    recomputed = [] if layout.recomputation == "none" else [f"{layout.recomputation} recomputation{of}"]
    recomputed += ["optimizer in the host"] * layout.offload + ["activations in the host"] * layout.offload_activations
    kept = [f"{12 + layout.gradient_bytes} bytes a parameter"] if layout.keeps_remainders else []
    return ", ".join(degrees + rest + recomputed + kept)


def training_finding(training: Training, rows: Sequence[Sensitivity]) -> str:
    """Name days, money, their uses, and the input that would help most."""
    low, high = map(format_days, training.interval_s)
    interval = f"{100 * training.conditions.confidence:g} % interval: {low} to {high}"
    part, share = bottleneck(training)
    upgrade = best_upgrade(rows)
    saved_s = training.total_s - upgrade.best_s
    return (
        f"{training.model.name} with {format_count(training.tokens)} {_words(training)} on {training.machine.name} "
        f"takes {format_days(training.total_s)} ({interval}) at "
        f"{100 * training.step.mfu:.1f} % MFU and {100 * training.goodput.share:.1f} % goodput, "
        f"{format_dollars(training.cost)} and {format_amount(training.energy_kwh / 1000)} MWh. Most of it goes into "
        f"{name_of_part(part)}, {100 * share:.0f} %; what would help most is {100 * CHANGE:g} % {upgrade.better} "
        f"{upgrade.name}: {format_days(saved_s)} fewer, {100 * saved_s / training.total_s:.1f} %."
        f"{memory_caution(training)}"
    )


def memory_caution(training: Training) -> str:
    """Return a sentence about a layout that few programs or none can run; nothing about any other."""
    memory, software = training.memory, training.layout.software
    if not memory.fits:
        return (
            f" It needs {format_gib(memory.total_bytes)} of a device's {format_gib(memory.capacity_bytes)}: "
            "it does not fit."
        )
    if not software.master_weight_remainders:
        return ""
    usual = replace(training.layout, software=replace(software, gradient_bytes=4, master_weight_remainders=False))
    needed = estimate_memory(training.model, usual, training.machine, global_batch=training.step.num_samples)
    if needed.fits:
        return ""
    return (
        f" With 18 bytes a parameter it would need {format_gib(needed.total_bytes)} of a device's "
        f"{format_gib(memory.capacity_bytes)}: this is of a program that keeps gradients in BF16 and of master weights "
        f"only the remainders, {format_gib(memory.total_bytes)}."
    )


def _words(training: Training) -> str:
    return "images" if isinstance(training.model, Convolutional) else "tokens"


def training_tables(training: Training, rows: Sequence[Sensitivity]) -> Sequence[Table]:
    """Make the tables of the run's numbers, its parts, a device's memory, and the tornado."""
    return [_numbers(training), _parts(training), _memory(training.memory), tornado_table(rows, training.total_s)]


def _numbers(training: Training) -> Table:
    step, goodput, words = training.step, training.goodput, _words(training)
    low, high = map(format_days, training.interval_s)
    batch = f"{step.num_samples:,} sequences, {format_count(step.num_tokens)} tokens"
    if words == "images":
        batch = f"{step.num_samples:,} images"
    numbers = [
        ("parameters", format_count(training.model.num_parameters)),
        ("layout", format_layout(training.layout)),
        ("global batch", batch),
        ("step", format_seconds(step.total_s)),
        ("steps", f"{training.num_steps:,}"),
        ("MFU", f"{100 * step.mfu:.1f} %"),
        ("HFU", f"{100 * step.hfu:.1f} %"),
        (f"{words}/s", f"{step.tokens_per_s:,.0f}"),
        (f"{words}/s a device", f"{step.tokens_per_s / training.machine.num_devices:,.0f}"),
        ("ideal", format_days(goodput.work_s)),
        ("with failures and states", format_days(training.total_s)),
        ("interval", f"{low} to {high}"),
        ("of which a step's error", f"{100 * training.step_error:.1f} % (standard deviation)"),
        ("of which failures' chance", f"{100 * goodput.deviation_s / training.total_s:.2f} % (standard deviation)"),
        ("goodput", f"{100 * goodput.share:.1f} %"),
        ("failures", f"{format_amount(goodput.num_failures)}, one in {format_seconds(goodput.mtbf_s)}"),
        ("state", f"{format_bytes(training.checkpoint_bytes)}, written in {format_seconds(goodput.checkpoint_s)}"),
        ("states written every", format_seconds(goodput.interval_s)),
        ("device-hours", format_count(training.device_hours)),
        ("cost", f"{format_dollars(training.cost)} ({' to '.join(map(format_dollars, training.cost_interval))})"),
        ("power drawn", f"{100 * training.draw:.0f} % of {training.machine.accelerator.power_w:g} W a device"),
        ("energy", f"{format_amount(training.energy_kwh / 1000)} MWh"),
        ("carbon", f"{format_amount(training.carbon_kg / 1000)} t CO2e"),
    ]
    return Table(title="The run:", headers=("", "value"), rows=numbers)


def _parts(training: Training) -> Table:
    rows = [
        (name_of_part(name), f"{seconds / _DAY_S:.4g}", f"{100 * seconds / training.total_s:.1f} %")
        for name, seconds in [*sorted(training.parts.items(), key=lambda part: -part[1]), ("total", training.total_s)]
    ]
    return Table(title="What its time goes into:", headers=("part", "days", "share"), rows=rows)


def _memory(memory: Memory) -> Table:
    rows = [
        (name, format_gib(num_bytes), f"{100 * num_bytes / memory.capacity_bytes:.1f} %")
        for name, num_bytes in [
            *memory.parts.items(),
            ("total", memory.total_bytes),
            ("free", memory.capacity_bytes - memory.total_bytes),
        ]
    ]
    title = f"A device's memory (stage {memory.stage}):"
    return Table(title=title, headers=("part", "needed", "of the device"), rows=rows)


def tornado_table(rows: Sequence[Sensitivity], total_s: float) -> Table:
    """Make the table of each input's effect on days and dollars."""
    down, up = f"-{100 * CHANGE:g} %", f"+{100 * CHANGE:g} %"
    return Table(
        title=f"If one input is {100 * CHANGE:g} % less or more:",
        headers=("input", f"days at {down}", f"days at {up}", f"cost at {down}", f"cost at {up}", "moves the days by"),
        rows=[
            (
                row.name,
                f"{row.low_s / _DAY_S:.4g}",
                f"{row.high_s / _DAY_S:.4g}",
                format_dollars(row.low_cost),
                format_dollars(row.high_cost),
                f"{100 * row.swing_s / total_s:.1f} %",
            )
            for row in rows
        ],
    )


def training_charts(training: Training, rows: Sequence[Sensitivity]) -> Sequence[Chart]:
    """Draw the run's parts, the tornado, and a device's memory."""
    part, share = bottleneck(training)
    memory = training.memory
    needed = {**memory.parts, "all of these": memory.total_bytes, "there is": memory.capacity_bytes}
    return [
        parts_chart(
            {name_of_part(name): seconds for name, seconds in training.parts.items()},
            title=f"{100 * share:.0f} % of {format_days(training.total_s)} go into {name_of_part(part)}",
        ),
        tornado_chart(rows, training.total_s),
        BarChart(
            slug="memory",
            title=f"{format_gib(memory.total_bytes)} of {format_gib(memory.capacity_bytes)} are needed",
            caption="Memory of the device that needs the most, by what is in it.",
            axis=Axis(title="memory (GiB)"),
            rows=list(needed),
            parts={"memory": [num_bytes / _GIB for num_bytes in needed.values()]},
        ),
    ]


def parts_chart(parts: Mapping[str, float], *, title: str) -> BarChart:
    """Draw days by their use, the most first; ``parts`` are seconds."""
    rows = sorted(parts, key=lambda name: -parts[name])
    return BarChart(
        slug="parts",
        title=title,
        caption="Expected days by what they go into.",
        axis=Axis(title="time (days)"),
        rows=rows,
        parts={"time": [parts[name] / _DAY_S for name in rows]},
    )


def tornado_chart(rows: Sequence[Sensitivity], total_s: float) -> RangeChart:
    """Draw days by input; those that move nothing are left out."""
    moving = [row for row in rows if row.swing_s > 0]
    return RangeChart(
        slug="tornado",
        title=f"±{100 * CHANGE:g} % of {moving[0].name} move the run by {100 * moving[0].swing_s / total_s:.0f} %",
        caption=f"Expected days if one input is {100 * CHANGE:g} % less or more.",
        axis=Axis(title="time (days)"),
        base=total_s / _DAY_S,
        rows=[row.name for row in moving],
        low=[row.low_s / _DAY_S for row in moving],
        high=[row.high_s / _DAY_S for row in moving],
    )
