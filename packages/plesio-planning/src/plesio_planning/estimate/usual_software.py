"""The program of `plesio_planning.estimate.layout.SOFTWARE` that ran such a layout in a year, where nobody says.

FSDP (before it DeepSpeed) shards parameters over the replicas, Megatron all other layouts. A program is taken from the
year on in which it, or the paper about it, came out; runs of a year later than the newest take that.
"""

from collections.abc import Mapping, Sequence

from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SoftwareName

__all__ = ["usual_software"]

_MEGATRON: Sequence[tuple[int, SoftwareName]] = (
    (2024, "megatron-core"),
    (2023, "current"),
    (2022, "megatron-2022"),
    (0, "megatron-2021"),
)
_SHARDED: Sequence[tuple[int, SoftwareName]] = ((2025, "current"), (2022, "fsdp-2023"), (0, "deepspeed-2021"))
_CAME_OUT: Mapping[str, int] = {"volta": 2017, "ampere": 2020, "hopper": 2022, "blackwell": 2024}
"""Year of an architecture; these programs are for no others."""
_LATER = 2
"""Years from then to most of its published runs: an assumption, as A100s of 2022 and H100s of 2024."""


def usual_software(machine: Machine, *, zero: int, year: int | None) -> tuple[SoftwareName, str]:
    """Return the program, and a sentence that says why; ``year`` None is two years after the accelerator came out.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> usual_software(parse_machine("64xa100"), zero=3, year=2021)[0]
    'deepspeed-2021'
    """
    came_out = _CAME_OUT.get(machine.accelerator.architecture)
    if came_out is None:
        return "current", f"`--software auto` is current on {machine.accelerator.name}."
    when = came_out + _LATER if year is None else year
    name = next(name for since, name in (_SHARDED if zero == 3 else _MEGATRON) if when >= since)
    layout = "a layout that shards parameters" if zero == 3 else "a layout that does not shard parameters"
    return name, f"`--software auto` is {name}: {layout}, on {machine.accelerator.name} in {when}."
