"""`plesio estimate`: what a training run takes on hardware that you need not have."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import parse_bandwidth, parse_count, parse_seconds

if TYPE_CHECKING:
    from plesio.planning.estimate import Layout, Machine, Model
    from plesio.report.estimate import Estimate

__all__ = ["EXAMPLES", "estimate"]

EXAMPLES = """\b
Examples:
  plesio estimate --model llama-70b --cluster 2048xh100 --tp 8 --pp 4 --tokens 2T
  plesio estimate --model llama-70b --cluster 2048xh100 --tokens 2T --search --out runs/llama
  plesio estimate --model llama-3-8b --cluster 64xh100 --tokens 300B --search --devices 32,64,128
  plesio estimate --model llama-3-8b --cluster 64xh100 --tokens 300B --search --accelerators a100,h100
  plesio estimate --model ./config.json --cluster 16x4a100 --tp 4 --tokens 20B --network-bandwidth "400 Gbit/s"
  plesio estimate --model resnet50 --cluster 64xv100 --precision fp16 --tokens 115M
\b
A model is a name or a Hugging Face config.json, a cluster a number of devices and an accelerator.
docs/planning.md explains what comes out, what it assumes, and where it stops being true."""

Read = TypeVar("Read")

_BATCH_TOKENS = 2**22
"""Of a step, if nobody says: about the 4M of Llama 2 (Touvron et al. 2023b)."""
_BATCH_IMAGES = 32
"""Of a device (Goyal et al. 2017)."""
_OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in ("tp", "pp", "vpp", "dp", "ep", "cp", "zero", "micro_batch")},
    **{name: f"--{name.replace('_', '-')}" for name in ("recomputation", "precision", "sequence_length", "tokens")},
    **{name: f"--{name.replace('_', '-')}" for name in ("pue", "step_error", "confidence")},
    "global_batch": "--batch",
    "device_mtbf_s": "--mtbf",
    "restart_s": "--restart",
    "storage_bytes_per_s": "--storage-bandwidth",
    "price_per_h": "--price",
    "carbon_kg_per_kwh": "--carbon",
}
"""The option of each parameter that a message may name."""
_SEARCHED = ("tp", "pp", "vpp", "dp", "ep", "cp", "zero", "micro_batch", "recomputation")


def estimate(
    model: Annotated[str, typer.Option("--model", metavar="NAME|FILE", help="llama-70b, or a config.json.")],
    cluster: Annotated[str, typer.Option("--cluster", metavar="NxNAME", help="2048xh100, or 16x4a100: hosts of 4.")],
    tokens: Annotated[str, typer.Option("--tokens", metavar="COUNT", help="To train with: 2T, 300B; images of a CNN.")],
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="N",
            help="Sequences (images) of a step; else about 4M tokens, 32 images a device.",
            show_default=False,
        ),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            "--sequence-length", metavar="N", help="Tokens of a sequence; else the model's.", show_default=False
        ),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            "--tp", metavar="N", help="Tensor parallelism: devices that share a layer. [1]", show_default=False
        ),
    ] = None,
    pp: Annotated[
        int | None, typer.Option("--pp", metavar="N", help="Pipeline parallelism: stages. [1]", show_default=False)
    ] = None,
    vpp: Annotated[
        int | None, typer.Option("--vpp", metavar="N", help="Parts of a stage, interleaved. [1]", show_default=False)
    ] = None,
    dp: Annotated[
        int | None,
        typer.Option("--dp", metavar="N", help="Data parallelism: replicas. [what remains]", show_default=False),
    ] = None,
    ep: Annotated[
        int | None,
        typer.Option(
            "--ep", metavar="N", help="Expert parallelism: replicas that share experts. [1]", show_default=False
        ),
    ] = None,
    cp: Annotated[
        int | None,
        typer.Option(
            "--cp", metavar="N", help="Context parallelism: devices that share a sequence. [1]", show_default=False
        ),
    ] = None,
    zero: Annotated[
        int | None,
        typer.Option(
            "--zero",
            metavar="N",
            help="0 to 3: replicas share optimizer, gradients, parameters. [1]",
            show_default=False,
        ),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option("--micro-batch", metavar="N", help="Sequences of a replica at a time. [1]", show_default=False),
    ] = None,
    recomputation: Annotated[
        str | None, typer.Option("--recomputation", metavar="none|selective|full", help="[none]", show_default=False)
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="Of matrix products: fp32, tf32, fp16, bf16, fp8.")
    ] = "bf16",
    software: Annotated[
        str, typer.Option("--software", metavar="NAME", help="current, megatron-core, megatron-2022, megatron-2021.")
    ] = "current",
    local_bandwidth: Annotated[
        str | None, typer.Option("--local-bandwidth", metavar="BANDWIDTH", help='In a host: "450 GB/s".')
    ] = None,
    network_bandwidth: Annotated[
        str | None,
        typer.Option("--network-bandwidth", metavar="BANDWIDTH", help='Of a host to others: "3200 Gbit/s".'),
    ] = None,
    storage_bandwidth: Annotated[
        str | None, typer.Option("--storage-bandwidth", metavar="BANDWIDTH", help='For states: "2 TB/s".')
    ] = None,
    mtbf: Annotated[
        str | None, typer.Option("--mtbf", metavar="TIME", help='Between failures of one device: "50000 h".')
    ] = None,
    restart: Annotated[
        str, typer.Option("--restart", metavar="TIME", help="From a failure until states are read.")
    ] = "10 min",
    price: Annotated[
        float | None, typer.Option("--price", metavar="DOLLARS", help="For a device and hour.", show_default=False)
    ] = None,
    pue: Annotated[float, typer.Option("--pue", metavar="X", help="The building's energy over the devices'.")] = 1.1,
    carbon: Annotated[float, typer.Option("--carbon", metavar="KG", help="CO2e of a kWh.")] = 0.385,
    step_error: Annotated[
        float | None,
        typer.Option("--step-error", metavar="SHARE", help="Standard deviation of a step's estimate; else Megatron's."),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", metavar="SHARE", help="Of the interval.")] = 0.9,
    search: Annotated[bool, typer.Option("--search", help="Find the fastest layout; keep the degrees given.")] = False,
    top: Annotated[int, typer.Option("--top", metavar="N", help="Layouts that a search shows.")] = 10,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="N,...", help="Machines that a search compares; else half and twice."),
    ] = None,
    accelerators: Annotated[
        str | None, typer.Option("--accelerators", metavar="NAME,...", help="The same, of other accelerators.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for the page, pictures and JSON.", show_default=False),
    ] = None,
) -> int:
    """Estimate time, memory, cost and energy of a training run.

    From the model, the machine and how one is laid out over the other; or with the fastest layout of all. Needs no
    accelerator.
    """
    from plesio.planning.estimate import SOFTWARE, find_model, parse_machine
    from plesio.planning.estimate.training import DEVICE_MTBF_S, STEP_ERROR, Conditions

    if software not in SOFTWARE:
        raise ConfigError(f'--software "{software}" is unknown; {nearest(software, SOFTWARE)}')
    if not search and (devices, accelerators) != (None, None):
        raise ConfigError("--devices and --accelerators compare machines; add --search")
    machine = _with_links(_read("--cluster", cluster, parse_machine), local=local_bandwidth, network=network_bandwidth)
    read: dict[str, Any] = {
        "device_mtbf_s": DEVICE_MTBF_S if mtbf is None else _read("--mtbf", mtbf, parse_seconds),
        "restart_s": _read("--restart", restart, parse_seconds),
        "storage_bytes_per_s": None
        if storage_bandwidth is None
        else _read("--storage-bandwidth", storage_bandwidth, parse_bandwidth),
    }
    run: dict[str, Any] = {"tokens": _read("--tokens", tokens, parse_count)}
    machines: Sequence[Machine] = (machine,)
    if search:
        machines = _machines(machine, devices=devices, accelerators=accelerators)
        if price is not None and len({one.accelerator.name for one in machines}) > 1:
            raise ConfigError("--price is one accelerator's; leave it out to compare several")
    values = (tp, pp, vpp, dp, ep, cp, zero, micro_batch, recomputation)
    given = {name: value for name, value in zip(_SEARCHED, values, strict=True) if value is not None}
    kind: dict[str, Any] = {"precision": precision, "software": SOFTWARE[software]}
    with _in_options():
        trained = find_model(model, sequence_length=sequence_length)
        run["conditions"] = Conditions(
            **read,
            price_per_h=price,
            pue=pue,
            carbon_kg_per_kwh=carbon,
            step_error=STEP_ERROR if step_error is None else step_error,
            confidence=confidence,
        )
        if search:
            run["global_batch"] = _default_batch(trained, machine, multiple_of=1) if batch is None else batch
            found = _search(trained, machines, fixed=given, top=top, **run, **kind)
        else:
            layout = _layout(given, machine, **kind)
            multiple_of = layout.dp * layout.micro_batch * (layout.pp if layout.vpp > 1 else 1)
            run["global_batch"] = _default_batch(trained, machine, multiple_of=multiple_of) if batch is None else batch
            found = _estimate(trained, layout, machine, **run)
    _show(found, out=out)
    return 0


def _read(option: str, text: str, parse: Callable[[str], Read]) -> Read:
    """What the text of an option stands for; an error says whose it is."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


@contextmanager
def _in_options() -> Iterator[None]:
    """Errors name options instead of parameters."""
    from plesio.cli.function_options import in_options

    try:
        yield
    except ConfigError as error:
        raise ConfigError(in_options(str(error), _OPTIONS)) from None


def _with_links(machine: "Machine", *, local: str | None, network: str | None) -> "Machine":
    if local is not None:
        link = _read("--local-bandwidth", local, lambda text: replace(machine.local, bytes_per_s=parse_bandwidth(text)))
        machine = replace(machine, local=link)
    if network is not None:
        nic = _read(
            "--network-bandwidth", network, lambda text: replace(machine.nic, bytes_per_s=parse_bandwidth(text))
        )
        machine = replace(machine, nic=nic)
    return machine


def _layout(given: dict[str, Any], machine: "Machine", **kind: Any) -> "Layout":
    from plesio.planning.estimate import Layout

    replica = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    remaining = {"dp": max(machine.num_devices // max(replica, 1), 1), "zero": 1}
    return Layout(**{**remaining, **given}, sequence_parallel=given.get("tp", 1) > 1, **kind)


def _default_batch(model: "Model", machine: "Machine", *, multiple_of: int) -> int:
    from plesio.planning.estimate import Convolutional

    if isinstance(model, Convolutional):
        wanted = _BATCH_IMAGES * machine.num_devices
    else:
        wanted = max(_BATCH_TOKENS // model.sequence_length, 1)
    return -(-wanted // multiple_of) * multiple_of


def _machines(machine: "Machine", *, devices: str | None, accelerators: str | None) -> Sequence["Machine"]:
    """The machine itself first, then those that it is compared with."""
    from plesio.planning.estimate import find_accelerator

    try:
        numbers = [int(part) for part in (devices or "").split(",") if part.strip()]
    except ValueError:
        numbers = []
    if devices is not None and (not numbers or min(numbers) < 1):
        raise ConfigError(f'--devices "{devices}": write whole numbers of 1 or more, as in "512,1024,2048"')
    if devices is None and accelerators is None:
        numbers = [machine.num_devices // 2, 2 * machine.num_devices]
    sizes = [machine, *(_of_size(machine, number) for number in numbers if number and number != machine.num_devices)]
    names = [name for name in (accelerators or "").split(",") if name.strip()]
    if accelerators is not None and not names:
        raise ConfigError(f'--accelerators "{accelerators}": write names, as in "a100,h100"')
    kinds = [_read("--accelerators", name, find_accelerator) for name in names]
    others = [
        replace(size, accelerator=kind, local=kind.local, nic=kind.nic)
        for kind in kinds
        if kind != machine.accelerator
        for size in sizes
    ]
    return [*sizes, *others]


def _of_size(machine: "Machine", num_devices: int) -> "Machine":
    return replace(machine, num_devices=num_devices, devices_per_host=min(num_devices, machine.devices_per_host))


def _estimate(model: "Model", layout: "Layout", machine: "Machine", **run: Any) -> "Estimate":
    from plesio.planning.estimate.sensitivity import tornado
    from plesio.planning.estimate.training import estimate_training
    from plesio.report.estimate import Estimate

    training = estimate_training(model, layout, machine, **run)
    return Estimate(training=training, sensitivities=tornado(training))


def _search(model: "Model", machines: Sequence["Machine"], *, top: int, **run: Any) -> "Estimate":
    from plesio.planning.estimate.frontier import find_frontier
    from plesio.planning.estimate.sensitivity import tornado
    from plesio.report.estimate import Estimate

    if top < 1:
        raise ConfigError(f"--top {top}: write 1 or more")
    with _progress() as on_progress:
        frontier = find_frontier(model, machines, on_progress=on_progress, **run)
    training = frontier.on(machines[0])
    return Estimate(training=training, sensitivities=tornado(training), frontier=frontier, top=top)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar in a terminal, for as long as a search goes on; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("searching")
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def _show(estimate: "Estimate", *, out: Path | None) -> None:
    from rich.console import Console

    from plesio.cli.compare import PLAIN_WIDTH
    from plesio.cli.function_options import make_folder
    from plesio.report.estimate import render_estimate, write_estimate

    if out is not None:
        make_folder(out)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(render_estimate(estimate))
    if out is not None:
        typer.echo(f"\n{write_estimate(estimate, out)}")
