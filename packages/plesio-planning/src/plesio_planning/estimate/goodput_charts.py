"""Ways to go on when devices fail, in tables and charts (`plesio.core.charts`)."""

import math
from collections.abc import Mapping, Sequence

from plesio.core.charts import Axis, BarChart, LineChart, Series, Table
from plesio_planning.estimate.goodput_ways import WayToGoOn

ByDevices = Mapping[int, Sequence[WayToGoOn]]


def percent(share: float) -> str:
    """Write a share with a digit behind the point, and with more where that would be 0 or 100.

    >>> percent(0.6757), percent(0.00031)
    ('67.6 %', '0.031 %')
    """
    value = 100 * share
    return f"{value:.1f} %" if value >= 0.1 or value == 0 else f"{value:.2g} %"


def names_of(ways: Sequence[WayToGoOn]) -> list[str]:
    """Return the uses of time beside work, of all ways; devices that are idle in all of them come last."""
    names = dict.fromkeys(part for way in ways for part in way.parts if part != "work")
    return sorted(names, key=lambda part: part == "idle")


def ways_table(ways: Sequence[WayToGoOn], *, num_devices: int) -> Table:
    """Return each way's share of work, simulated and by closed form, and what the rest goes into."""
    others = names_of(ways)
    rows = [
        (
            way.name,
            f"{percent(way.share)} ({100 * way.work_ci95[0]:.2f} to {100 * way.work_ci95[1]:.2f})",
            "" if math.isnan(way.exact) else percent(way.exact),
            *(percent(way.parts[part]) if part in way.parts else "" for part in others),
        )
        for way in ways
    ]
    return Table(
        title=f"What {num_devices:,} devices that fail do with their time:",
        headers=("way", "work, simulated (95 % interval)", "closed form", *others),
        rows=rows,
    )


def by_devices_table(by_devices: ByDevices) -> Table:
    """Make the table of the share of work by number of devices."""
    names = _names(by_devices)
    rows = [
        (f"{num_devices:,}", *(percent(shares[name]) if name in shares else "" for name in names))
        for num_devices, shares in _shares(by_devices).items()
    ]
    return Table(title="Work by number of devices:", headers=("devices", *names), rows=rows)


def by_devices_chart(by_devices: ByDevices, *, title: str) -> LineChart:
    """Draw the share of work by number of devices, a line for each way."""
    shares = _shares(by_devices)
    return LineChart(
        slug="failing-devices",
        title=title,
        caption="Share of the devices' time that is work which counts, by number of devices.",
        x=Axis(title="devices", log=True),
        y=Axis(title="work (%)"),
        series=[
            Series(name=name, x=list(shares), y=[100 * by.get(name, math.nan) for by in shares.values()])
            for name in _names(by_devices)
        ],
    )


def ways_chart(ways: Sequence[WayToGoOn], *, num_devices: int) -> BarChart:
    """Draw the uses of time in each way."""
    best = max(ways, key=lambda way: way.share)
    return BarChart(
        slug="failing-ways",
        title=f"{best.name[0].upper()}{best.name[1:]}: {percent(best.share)} of the time is work",
        caption=f"What the time of {num_devices:,} devices goes into; how much of it is work stands at the end.",
        axis=Axis(title="time (%)"),
        rows=[way.name for way in ways],
        parts={part: [100 * way.parts.get(part, 0.0) for way in ways] for part in ("work", *names_of(ways))},
        ends=[percent(way.share) for way in ways],
    )


def _shares(by_devices: ByDevices) -> dict[int, dict[str, float]]:
    return {num_devices: {way.name: way.share for way in ways} for num_devices, ways in by_devices.items()}


def _names(by_devices: ByDevices) -> list[str]:
    return list(dict.fromkeys(way.name for ways in by_devices.values() for way in ways))
