"""The tables of the comparison, and each criterion beside what was found."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plesio.core.charts import Table

Row = Mapping[str, Any]
NOTHING = "–"


def real_s(row: Row) -> float:
    """Return the median of what was measured; NaN if nothing was."""
    return statistics.median(row["real_s"]) if row["real_s"] else math.nan


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None or math.isnan(seconds) else f"{1e3 * seconds:.2f} ms"


def _measured(row: Row) -> str:
    values = row["real_s"]
    if not values:
        return NOTHING
    return f"{_ms(real_s(row))} ({1e3 * min(values):.2f} to {1e3 * max(values):.2f})"


def _percent(share: float) -> str:
    return NOTHING if math.isnan(share) else f"{100 * share:.1f} %"


def _times(ratio: float) -> str:
    return NOTHING if math.isnan(ratio) else f"{ratio:.2f}x"


def _virtual(row: Row) -> float:
    return math.nan if row["virtual_s"] is None else float(row["virtual_s"])


def _starting(rows: Sequence[Row], name: str, **where: object) -> Row:
    """Return the row of a case, by the beginning of its name."""
    return next(
        row for row in rows if row["case"].startswith(name) and all(row[key] == value for key, value in where.items())
    )


def throughput_table(found: Row, stages: int) -> Table:
    rows = [row for row in found["rows"] if row["stages"] == stages]
    base, stage_s = _starting(rows, "sequential"), found["stage_s"]
    return Table(
        title=f"{stages} paced stages of {1e3 * stage_s:g} ms: from one micro-batch to the next",
        headers=("schedule", "by", "virtual", "measured", "of sequential", "measured", "bubble", "measured"),
        rows=[
            (
                row["case"],
                row["runner"],
                _ms(_virtual(row)),
                _measured(row),
                _times(_virtual(base) / _virtual(row)),
                _times(real_s(base) / real_s(row)),
                _percent(1 - stage_s / _virtual(row)),
                _percent(1 - stage_s / real_s(row)),
            )
            for row in rows
        ],
    )


def links_tables(found: Row) -> Iterator[Table]:
    for setting in found["settings"]:
        best = min(_virtual(row) for row in setting["rows"] if row["synchronous"])
        best_real = min((real_s(row) for row in setting["rows"] if row["synchronous"]), default=math.nan)
        yield Table(
            title=f"100 Mbit/s, latency {1e3 * setting['latency_s']:g} ms, messages of "
            f"{setting['message_bytes']:,} bytes",
            headers=("schedule", "by", "virtual", "measured", "of the best synchronous", "measured"),
            rows=[
                (
                    row["case"],
                    row["runner"],
                    _ms(_virtual(row)),
                    _measured(row),
                    _times(best / _virtual(row)),
                    _times(best_real / real_s(row)),
                )
                for row in setting["rows"]
            ],
        )


def losses(found: Row, *, real: bool) -> list[tuple[int, str, str, dict[str, float]]]:
    """Stages, case and runner; share of the throughput that is lost, by where stragglers are."""
    of = {}
    for row in found["rows"]:
        seconds = real_s(row) if real else _virtual(row)
        if not math.isnan(seconds):
            of[row["stages"], row["case"], row["runner"], row["where"]] = seconds
    keys = dict.fromkeys(key[:3] for key in of)
    return [
        (*key, {where: 1 - of[*key, "even"] / of[*key, where] for where in ("one stage", "any stage")}) for key in keys
    ]


def straggler_table(found: Row, *, real: bool) -> Table:
    return Table(
        title=f"Throughput lost where one pass in {found['of']} takes {found['factor']:g} times as long, "
        + ("measured" if real else "virtual"),
        headers=("stages", "schedule", "by", "always the same stage's", "any stage's in turn"),
        rows=[
            (str(stages), case, runner, _percent(lost["one stage"]), _percent(lost["any stage"]))
            for stages, case, runner, lost in losses(found, real=real)
        ],
    )


def computing_table(found: Row) -> Table:
    base = _starting(found["rows"], "sequential")
    load = found["load"]
    return Table(
        title=f"Two stages that compute, on two cores (load {load[0]:.1f} before, {load[1]:.1f} after)",
        headers=("schedule", "by", "from one micro-batch to the next", "of sequential"),
        rows=[
            (row["case"], row["runner"], _measured(row), _times(real_s(base) / real_s(row))) for row in found["rows"]
        ],
    )


def memory_table(found: Row) -> Table:
    count = len(found["rows"][0]["bytes"])
    return Table(
        title=f"Memory of each process beside the network's weights (a stage has "
        f"{found['stage_weights_bytes'] / 1e6:.1f} MB of them)",
        headers=("schedule", *(f"stage {stage}" for stage in range(count))),
        rows=[(row["case"], *(f"{num_bytes / 1e6:.0f} MB" for num_bytes in row["bytes"])) for row in found["rows"]],
    )


def _mean_to_target(row: Row) -> float:
    values = row["seconds_to_target"]
    return math.nan if None in values else statistics.fmean(values)


def _on_the_time_of(found: Row, row: Row) -> list[tuple[str, float]]:
    """Return the schedules that have a run's numbers, and their time over its own."""
    periods = found["periods_s"]
    own = [(row["case"], 1.0)]
    if not row["synchronous"]:
        return own
    suffix = f", m = {row['micro_batches']}"
    others = [case for case in periods if case.endswith(suffix) and "2BW" not in case and case != row["case"]]
    return own + [(case, periods[case] / periods[row["case"]]) for case in others]


def learning_table(found: Row) -> Table:
    rows = []
    for row in found["rows"]:
        finals = [100 * curve["accuracies"][-1] for curve in row["curves"]]
        to_target = _mean_to_target(row)
        reached = sum(seconds is not None for seconds in row["seconds_to_target"])
        for case, factor in _on_the_time_of(found, row):
            seconds = f"{factor * to_target:.1f} s" if not math.isnan(to_target) else f"{reached} of {len(finals)} runs"
            rows.append(
                (
                    case,
                    f"{row['rate']:g}",
                    f"{statistics.fmean(finals):.1f} % ({min(finals):.1f} to {max(finals):.1f})",
                    f"{factor * row['curves'][0]['seconds'][-1]:.1f} s",
                    seconds,
                )
            )
    return Table(
        title=f"Digits, four stages of 20 ms, micro-batches of {found['micro_batch']}: accuracy, and time to "
        f"{100 * found['target']:g} % (virtual)",
        headers=("schedule", "step size", "accuracy at the end", "all samples", "to the target"),
        rows=rows,
    )


def criteria(found: Mapping[str, Row]) -> Table:
    rows: list[tuple[str, str, str]] = []
    if "throughput" in found:
        rows += _throughput_criteria(found["throughput"])
    for setting in found.get("links", {}).get("settings", ()):
        waited = [row for row in setting["rows"] if row["synchronous"]]
        free = [row for row in setting["rows"] if row["case"].startswith("decoupled")]
        virtual = min(map(_virtual, waited)) / min(map(_virtual, free))
        real = min(map(real_s, waited)) / min(map(real_s, free))
        what = f"100 Mbit/s, {1e3 * setting['latency_s']:g} ms, {setting['message_bytes']:,} bytes"
        rows.append((f"{what}: 1.3x the best synchronous", _times(virtual), _times(real)))
    if "stragglers" in found:
        rows += _straggler_criteria(found["stragglers"])
    if "computing" in found:
        base = _starting(found["computing"]["rows"], "sequential")
        free = [row for row in found["computing"]["rows"] if row["case"].startswith("decoupled")]
        best = _times(real_s(base) / min(map(real_s, free)))
        rows.append(("two stages on two cores: 1.8x sequential", NOTHING, best))
    return Table(title="What is to be reached, and what was found", headers=("what", "virtual", "measured"), rows=rows)


def _throughput_criteria(found: Row) -> Iterator[tuple[str, str, str]]:
    for stages in dict.fromkeys(row["stages"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["stages"] == stages]
        free = _starting(rows, "decoupled, delay 2")
        for name, least in (
            ("sequential", f"{0.95 * stages:.2f}x"),
            (f"GPipe, m = {stages}", "1.3x"),
            (f"1F1B, m = {4 * stages}", "more than 1x"),
            ("ZB-V", "1x"),
        ):
            against = [row for row in rows if row["case"].startswith(name)]
            for row in against:
                yield (
                    f"K = {stages}, {row['case']}: {least}",
                    _times(_virtual(row) / _virtual(free)),
                    _times(real_s(row) / real_s(free)),
                )


def _straggler_criteria(found: Row) -> Iterator[tuple[str, str, str]]:
    texts: dict[str, list[str]] = {}
    for real in (False, True):
        every = losses(found, real=real)
        for stages in dict.fromkeys(one[0] for one in every):
            rows = {f"{case} ({runner})": lost for at, case, runner, lost in every if at == stages}
            base = next(lost for name, lost in rows.items() if name.startswith("1F1B"))
            for name, lost in rows.items():
                if name.startswith("decoupled"):
                    for where, share in lost.items():
                        what = f"K = {stages}, straggler in {where}, {name}: at most half of 1F1B's loss"
                        texts.setdefault(what, [NOTHING, NOTHING])[real] = (
                            f"{_percent(share)} of {_percent(base[where])}"
                        )
    for what, (virtual, real_text) in texts.items():
        yield what, virtual, real_text


def tables(found: Mapping[str, Row]) -> list[Table]:
    made = [criteria(found)]
    if "throughput" in found:
        each = dict.fromkeys(row["stages"] for row in found["throughput"]["rows"])
        made += [throughput_table(found["throughput"], stages) for stages in each]
    if "links" in found:
        made += links_tables(found["links"])
    if "stragglers" in found:
        made += [straggler_table(found["stragglers"], real=real) for real in (False, True)]
    for name, draw in (("computing", computing_table), ("memory", memory_table), ("learning", learning_table)):
        if name in found:
            made.append(draw(found[name]))
    return made
