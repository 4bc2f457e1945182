"""Tables of a characterisation: those of a paper with ours beside theirs, scaling, claims, and what was run."""

import math
from collections.abc import Callable, Iterator, Sequence

from plesio.core.charts import Table
from plesio.core.units import format_bytes
from plesio.report.characterisation.paper import PAPER, PaperLayout
from plesio.report.characterisation.summary import Characterisation, compute_step_s, regained
from plesio.report.inference import MIN_SEEDS, Judgement, size_word
from plesio.report.model import PolicySummary
from plesio.report.sentences import p_text, ratio_text, seeds_text, share_text
from plesio.report.statistics import Spread

_NONE = "–"


def paper_tables(found: Characterisation) -> dict[str, Table]:
    """Make the paper's tables as it has laid them out, by their numbers, with ours beside theirs."""
    draw = {"time": _by_workers, "accuracy": _by_workers, "regained": _regained, "decisions": _decisions}
    return {layout.number: draw[layout.of](found, layout) for layout in PAPER.tables}


def _by_workers(found: Characterisation, layout: PaperLayout) -> Table:
    """Make a row for each strategy and model that the paper or we have, with columns by the number of workers."""
    models = [*PAPER.models, *(model for model in found.models() if model not in PAPER.models)]
    ours, theirs = (_time, _their_time) if layout.of == "time" else (_accuracy, _their_accuracy)
    rows: list[list[str]] = []
    for strategy in layout.strategies:
        for model in models:
            summaries = [found.summary(strategy, model=model, workers=number) for number in PAPER.workers]
            published = [theirs(strategy, model, place) for place in range(len(PAPER.workers))]
            if any(summaries) or any(text != _NONE for text in published):
                rows.append([strategy, _model_text(model), *map(ours, summaries), *published])
    if layout.of == "time":
        rows += _ratio_rows(found, layout.strategies, models)
    numbers = [f"{whose}, {number}" for whose in ("ours", "theirs") for number in PAPER.workers]
    return Table(title=layout.title, headers=("strategy", "model", *numbers), rows=rows)


def _ratio_rows(found: Characterisation, strategies: Sequence[str], models: Sequence[str]) -> Iterator[list[str]]:
    """Yield the second strategy's time over the first one's: ratios compare although machines do not."""
    first, second = strategies
    for model in models:
        ours: list[str] = []
        for number in PAPER.workers:
            times = [found.summary(one, model=model, workers=number) for one in (second, first)]
            values = [None if one is None or one.time_s is None else one.time_s.mean for one in times]
            ours.append(_ratio(*values))
        published = [
            _ratio(*(_at(PAPER.strategies[one].time_s.get(model), place) for one in (second, first)))
            for place in range(len(PAPER.workers))
        ]
        if any(text != _NONE for text in (*ours, *published)):
            yield ["ratio", _model_text(model), *ours, *published]


def _ratio(one: float | None, other: float | None) -> str:
    return _NONE if one is None or other is None or not math.isfinite(one) or not other else ratio_text(one / other)


def _model_text(model: str) -> str:
    theirs = PAPER.models.get(model)
    return model if theirs is None else f"{model} ({theirs})"


def _at(values: Sequence[float] | None, place: int) -> float | None:
    return None if values is None else values[place]


def _time(summary: PolicySummary | None) -> str:
    return _spread(None if summary is None else summary.time_s, digits=2)


def _accuracy(summary: PolicySummary | None) -> str:
    return _spread(_percent(summary), digits=1)


def _percent(summary: PolicySummary | None) -> Spread | None:
    return None if summary is None or summary.final_metric is None else summary.final_metric.scaled(100)


def _spread(spread: Spread | None, *, digits: int) -> str:
    if spread is None:
        return _NONE
    return f"{spread.mean:.{digits}f}" + ("" if spread.std is None else f" ± {spread.std:.{digits}f}")


def _their_time(strategy: str, model: str, place: int) -> str:
    value = _at(PAPER.strategies[strategy].time_s.get(model), place)
    return _NONE if value is None else f"{value:.2f}" if math.isfinite(value) else f"> {PAPER.time_limit_s:.0f}"


def _their_accuracy(strategy: str, model: str, place: int) -> str:
    value = _at(PAPER.strategies[strategy].accuracy_points.get(model), place)
    return _NONE if value is None or math.isnan(value) else f"{value:.1f}"


def _regained(found: Characterisation, layout: PaperLayout) -> Table:
    """Make the table of the accuracy of plain and of modified asynchronous training with the most workers."""
    judged = regained(found)
    rows = []
    for model in dict.fromkeys((*PAPER.models, *found.models())):
        plain, modified = (
            _percent(found.summary(one, model=model, workers=PAPER.workers[-1])) for one in layout.strategies
        )
        gain = _NONE if plain is None or modified is None else f"{modified.mean - plain.mean:+.1f}"
        theirs = [_at(PAPER.strategies[one].accuracy_points.get(model), -1) for one in layout.strategies]
        if plain is None and modified is None and None in theirs:
            continue
        published = [_NONE if value is None else f"{value:.1f}" for value in theirs]
        difference = _NONE if theirs[0] is None or theirs[1] is None else f"{theirs[1] - theirs[0]:+.1f}"
        one = judged.get(model)
        tested = (
            [_NONE, _NONE] if one is None else [_tests(one)[1], _said(one, "won back" if one.value > 0 else "lost")]
        )
        means = [_spread(plain, digits=1), _spread(modified, digits=1), gain]
        rows.append([_model_text(model), *means, *tested, *published, difference])
    ours = ("ours, plain", "ours, modified", "points", "p by Holm", "said")
    headers = ("model", *ours, "theirs, plain", "theirs, modified", "points")
    return Table(title=layout.title, headers=headers, rows=rows)


def _decisions(found: Characterisation, layout: PaperLayout) -> Table:
    rows = []
    for feature, words in PAPER.decisions.items():
        rows.append([f"{feature}: theirs", *words])
        rows.append(
            [f"{feature}: ours", *(_decision(found, feature, one, layout.strategies[0]) for one in layout.strategies)]
        )
    first, second, *servers = layout.strategies
    headers = ("feature", first, second, *(f"PS, {one.lower()}" for one in servers))
    return Table(title=layout.title, headers=headers, rows=rows)


def _decision(found: Characterisation, feature: str, strategy: str, base: str) -> str:
    number = max(PAPER.workers)
    cells: list[float] = []
    for model in found.models():
        ours, ddp = (found.summary(one, model=model, workers=number) for one in (strategy, base))
        if ours is None or ddp is None:
            continue
        match feature:
            case "Memory usage":
                values = [one.state_bytes for one in (ours, ddp)]
            case "Communication overhead":
                values = [None if one.bytes_sent is None else one.bytes_sent.mean for one in (ours, ddp)]
            case "Training time":
                values = [None if one.time_s is None else one.time_s.mean for one in (ours, ddp)]
            case "Scalability":
                values = [_efficiency(found, strategy, model=model, workers=number), 1.0]
            case _:
                values = [ours.staleness.mean, 1.0]
        if values[0] is not None and values[1]:
            cells.append(values[0] / values[1])
    if not cells:
        return _NONE
    mean = sum(cells) / len(cells)
    if feature == "Scalability":
        return f"efficiency {share_text(mean)} at {number}"
    if feature == "Model consistency":
        return f"updates {mean:.1f} versions stale"
    what = {"Memory usage": "state", "Communication overhead": "bytes", "Training time": "time"}[feature]
    return f"{ratio_text(mean)} DDP's {what}"


def _efficiency(found: Characterisation, strategy: str, *, model: str, workers: int) -> float | None:
    """Return the speed-up over one worker, a worker."""
    rates = [found.summary(strategy, model=model, workers=number) for number in (workers, 1)]
    many, one = (None if rate is None or rate.samples_per_s is None else rate.samples_per_s.mean for rate in rates)
    return None if many is None or not one else many / one / workers


def scaling_table(found: Characterisation) -> Table:
    """Tabulate speed-up and efficiency by model, policy and number of workers, against one worker."""
    rows = []
    for combination, comparison in found.settings.items():
        # settings in which something else is varied are in the charts of that factor
        if comparison is not found.measured(model=combination.model, workers=combination.workers):
            continue
        alone = found.measured(model=combination.model, workers=1)
        for summary in comparison.policies:
            if summary.samples_per_s is None:
                continue
            # speed-up is over one worker under the same policy
            one = None if alone is None else alone.find(summary.policy)
            rate = summary.samples_per_s.mean
            gain = None if one is None or one.samples_per_s is None else rate / one.samples_per_s.mean
            state, compute = summary.state_bytes, compute_step_s(comparison, summary.policy)
            rows.append(
                (
                    combination.model,
                    summary.policy,
                    str(combination.workers),
                    _spread(summary.time_s, digits=2),
                    _NONE if compute is None else f"{1e3 * compute:.1f}",
                    f"{rate:,.0f}",
                    _NONE if gain is None else f"{ratio_text(gain)} ({share_text(gain / combination.workers)})",
                    _NONE if summary.final_metric is None else comparison.metric.spread_text(summary.final_metric),
                    _NONE if summary.bytes_sent is None else format_bytes(summary.bytes_sent.mean),
                    _NONE if state is None else format_bytes(state),
                    _NONE if summary.cpu is None else f"{summary.cpu:.2f}",
                )
            )
    headers = (
        *("model", "policy", "workers", "time (s)", "step (ms)", "samples/s", "speed-up (efficiency)"),
        *("metric", "bytes", "state", "cores"),
    )
    return Table(title="Speed-up and efficiency", headers=headers, rows=rows)


def claims_tables(found: Characterisation) -> dict[str, Table]:
    def rows(name: str, better: str, worse: str) -> Iterator[list[str]]:
        for claim in found.claims:
            one: Judgement | None = getattr(claim, name)
            metric = found.settings[claim.combination].metric
            if one is not None:
                text = metric.difference_text if name == "metric" else ratio_text
                gains = metric.improves(one.value) if name == "metric" else one.value > 1
                said = _said(one, better if gains else worse)
                if name != "speed" and claim.same_steps and one.num_seeds >= MIN_SEEDS:
                    said = "not tested: the same steps by construction"
                yield [claim.combination.text, claim.policy, _estimate(one, text), *_tests(one), said]

    headers = ("setting", "policy", "estimate (95 % interval)", "p", "by Holm", "g", "said")
    titles = {
        "speed": ("Speed against the baseline", "faster", "slower"),
        "metric": ("Final metric against the baseline", "better", "worse"),
        "spread": ("Spread of the metric over seeds against the baseline", "wider", "narrower"),
    }
    return {
        name: Table(title=title, headers=headers, rows=list(rows(name, better, worse)))
        for name, (title, better, worse) in titles.items()
    }


def _estimate(one: Judgement, text: Callable[[float], str]) -> str:
    interval = "" if one.low is None or one.high is None else f" ({text(one.low)} to {text(one.high)})"
    return f"{text(one.value)}{interval}"


def _tests(one: Judgement) -> tuple[str, str, str]:
    """Return p, p by Holm's method, and the effect size in words."""
    if one.p_value is None or one.p_adjusted is None:
        return _NONE, _NONE, _NONE
    size = _NONE if one.g is None else f"{one.g:+.1f}, {size_word(one.g)}"
    return p_text(one.p_value).removeprefix("p = "), p_text(one.p_adjusted).removeprefix("p = "), size


def _said(one: Judgement, shown: str) -> str:
    """Return ``shown`` if the comparison is significant, or else the reason why nothing is shown."""
    if one.shown:
        return shown
    if one.num_seeds < MIN_SEEDS:
        return f"not tested: {seeds_text(one.num_seeds)}"
    return "not tested: no spread" if one.p_value is None else "not shown"


def design_table(found: Characterisation) -> Table:
    rows = []
    for part in found.parts:
        crossed = [f"{name}: {', '.join(str(level) for level in levels)}" for name, levels in part.levels.items()]
        world = part.combinations[0].world
        number = sum(len(found.settings[one].seeds) * len(part.policies) for one in part.combinations)
        rows.append((part.name, world, " × ".join(crossed) or "base point", ", ".join(part.policies), str(number)))
    headers = ("part", "world", "crossed", "policies", "runs")
    return Table(title="What was crossed", headers=headers, rows=rows)
