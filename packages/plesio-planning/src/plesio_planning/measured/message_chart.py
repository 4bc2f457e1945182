"""The picture of exchanges that were measured: times by the size of a message, beside what the models say."""

from collections.abc import Callable, Mapping

from plesio.core.charts import Axis, LineChart, Series

__all__ = ["by_message"]


def by_message(
    medians_s: Mapping[str, Mapping[int, float]], modelled_s: Callable[[str, int], float], *, title: str, caption: str
) -> LineChart:
    """Measured points and modelled lines.

    Args:
        medians_s: Of each way, the measured seconds by the message's bytes.
        modelled_s: The model's seconds for a way and a number of bytes.
        title: The chart's.
        caption: What is shown.
    """
    series = []
    for name, times_s in medians_s.items():
        sizes_mb = [size / 1e6 for size in times_s]
        modelled_ms = [1e3 * modelled_s(name, size) for size in times_s]
        series.append(Series(name=f"{name}, modelled", group=name, x=sizes_mb, y=modelled_ms))
        measured_ms = [1e3 * each for each in times_s.values()]
        series.append(Series(name=f"{name}, measured", group=name, x=sizes_mb, y=measured_ms, style="points"))
    return LineChart(
        slug="measured",
        title=title,
        caption=caption,
        x=Axis(title="message (MB)", log=True),
        y=Axis(title="time (ms)", log=True),
        series=series,
    )
