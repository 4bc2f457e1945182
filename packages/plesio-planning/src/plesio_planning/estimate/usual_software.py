"""The program of `plesio_planning.estimate.layout.SOFTWARE` that ran such a layout in a year, where nobody says.

FSDP (before it DeepSpeed) shards parameters over the replicas, Megatron all other layouts. A program is taken from the
year on in which it, or the paper about it, came out.
"""

from collections.abc import Mapping, Sequence

from plesio.core.errors import ArgumentError
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SoftwareName

_MEGATRON: Sequence[tuple[int, SoftwareName]] = (
    (2024, "megatron-core"),
    (2023, "current"),  # with fused attention; for mixtures of experts it is later
    (2022, "megatron-2022"),
    (0, "megatron-2021"),
)
_SHARDED: Sequence[tuple[int, SoftwareName]] = ((2025, "current"), (2022, "fsdp-2023"), (0, "deepspeed-2021"))
_CAME_OUT: Mapping[str, int] = {"volta": 2017, "ampere": 2020, "hopper": 2022, "blackwell": 2024}
"""Year of an architecture; these programs are for no others."""
_LATER = 2
"""Years from then to most of its published runs: an assumption, as A100s of 2022 and H100s of 2024."""


def usual_software(machine: Machine, *, zero: int | None, year: int | None) -> tuple[SoftwareName, str]:
    """Return the program, and a sentence that says why.

    Args:
        machine: Machine to run on.
        zero: Stage of ZeRO; None if a search tries all of them.
        year: Year of the run; None is two years after the accelerator came out.

    Raises:
        ConfigError: There was no such accelerator in that year, or the year changes nothing.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> usual_software(parse_machine("64xa100"), zero=3, year=2021)[0]
    'deepspeed-2021'
    >>> usual_software(parse_machine("64xa100"), zero=None, year=2022)[1].partition(" is ")[2]
    'megatron-2022 for all layouts of the search, on a100 in 2022; with `--zero 3` it is fsdp-2023.'
    """
    came_out = _CAME_OUT.get(machine.accelerator.architecture)
    if came_out is None:
        if year is not None:
            raise ArgumentError(f"`year` has no effect on {machine.accelerator.name}; leave it out")
        return "current", f"`--software auto` is current on {machine.accelerator.name}."
    when = came_out + _LATER if year is None else year
    if when < came_out:
        raise ArgumentError(f"`year` is {when}, before {machine.accelerator.name}; write {came_out} or later")
    sharded, whole = (next(name for since, name in each if when >= since) for each in (_SHARDED, _MEGATRON))
    on = f"on {machine.accelerator.name} in {when}"
    if zero is None:
        all_layouts = f"{whole} for all layouts of the search, {on}"
        return whole, f"`--software auto` is {all_layouts}; with `--zero 3` it is {sharded}."
    if zero == 3:
        return sharded, f"`--software auto` is {sharded}: a layout that shards parameters, {on}."
    return whole, f"`--software auto` is {whole}: a layout that does not shard parameters, {on}."
