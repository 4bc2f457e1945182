"""How a run did against bsp: of made-up evaluations, so that every figure can be worked out by hand."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from plesio.core.results import Evaluation, LossPoint, RunResult
from plesio.policies import EventLog, parse_policy
from plesio.report.charts import draw_figure
from plesio.report.explanation import (
    FEWEST_TO_SMOOTH,
    Explanation,
    explanation_of,
    measured_table,
    metric_chart,
    metric_of,
    outcome_of,
    render_explanation_page,
    verdict_sentences,
)
from plesio.report.sentences import finding_of
from plesio.report.statistics import Spread, difference_of

MakeRun = Callable[..., RunResult]
NAN = float("nan")
GOOD = (0.5, 0.7, 0.8, 0.9, 0.96, 0.98, 0.98, 0.98)
BAD = (0.5, 0.6, 0.7, 0.8, 0.88, 0.92, 0.94, 0.94)
EVEN = (0.97, 0.97, 0.97)


def evaluations(values: Sequence[float], *, each_s: float) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(samples=100 * place, at_s=each_s * place, metric=value)
        for place, value in enumerate(values, start=1)
    )


@pytest.fixture
def run_of(make_run: MakeRun) -> Callable[..., RunResult]:
    def make(values: Sequence[float], *, policy: str = "bsp", each_s: float = 1.0, **others: object) -> RunResult:
        points = evaluations(values, each_s=each_s)
        plain = {
            "evaluations": points, "wall_s": each_s * len(points), "target": 0.9, "metric_name": "accuracy",
            "final_metric": values[-1] if values and values[-1] == values[-1] else None, "steps": 40,
            "losses": (LossPoint(clock=1, at_s=0.1, loss=1.0),), "bytes_sent_total": 0, **others,
        }  # fmt: skip
        return dataclasses.replace(make_run("bsp", 0), policy=policy, **plain)

    return make


@pytest.fixture
def against(run_of: MakeRun) -> Callable[..., Explanation]:
    """The explanation of an adaptive run, and a bsp run with other evaluations."""

    def make(ours: Sequence[float], theirs: Sequence[float], *, each_s: float = 1.0, **others: object) -> Explanation:
        run = run_of(ours, policy="adaptive", each_s=each_s, **others)
        log = EventLog(policy=parse_policy("adaptive"), entries=())
        return explanation_of(log, run, bsp=run_of(theirs, **others))

    return make


def rows(explanation: Explanation) -> dict[str, tuple[str, str, str]]:
    table = measured_table(explanation)
    assert table is not None
    return {what: (here, bsp, compared) for what, here, bsp, compared in table.rows}


def test_the_time_to_target_is_read_twice(run_of: MakeRun):
    """Neighbours average to 0.6, 0.667, 0.8, 0.887, 0.947: 0.9 is met 0.013 / 0.06 of the way from 4 s to 5 s."""
    outcome = outcome_of(run_of(GOOD), target=0.9)
    assert outcome.to_target_s == 4.0
    assert outcome.smooth_to_target_s == pytest.approx(4 + (0.9 - 2.66 / 3) / (2.84 / 3 - 2.66 / 3))
    assert outcome.end_metric == pytest.approx(0.98)


def test_less_may_be_better(run_of: MakeRun):
    values = (9.0, 7.0, 5.0, 4.0, 3.0, 3.0)
    outcome = outcome_of(run_of(values, metric_name="perplexity", metric_goal="min"), target=4.5)
    assert outcome.to_target_s == 4.0
    assert outcome.smooth_to_target_s == pytest.approx(3 + (16 / 3 - 4.5) / (16 / 3 - 4))


def test_one_lucky_evaluation_is_early_by_one_reading_alone(run_of: MakeRun):
    lucky = (0.5, 0.95, 0.6, 0.7, 0.8, 0.9, 0.92, 0.92)
    outcome = outcome_of(run_of(lucky), target=0.9)
    assert outcome.to_target_s == 2.0
    assert outcome.smooth_to_target_s is not None
    assert outcome.smooth_to_target_s > 6.0


def test_a_few_evaluations_are_not_smoothed(run_of: MakeRun):
    few = outcome_of(run_of(GOOD[-FEWEST_TO_SMOOTH + 1 :]), target=0.9)
    assert (few.smooth_to_target_s, few.smooth_metrics.x, few.last_metrics) == (None, (), ())
    assert few.end_metric == 0.98
    assert outcome_of(run_of(GOOD[-FEWEST_TO_SMOOTH:]), target=0.9).smooth_metrics.x


def test_a_target_is_not_met_through_an_evaluation_that_is_not_finite(run_of: MakeRun):
    outcome = outcome_of(run_of((0.5, 0.6, NAN, 0.95, 0.95, 0.95, 0.95)), target=0.9)
    assert outcome.to_target_s == 4.0
    assert outcome.smooth_to_target_s == 5.0
    assert outcome_of(run_of((0.5, 0.6, 0.7, NAN, NAN, NAN)), target=0.65).smooth_to_target_s is None


def test_better(against: Callable[..., Explanation]):
    explanation = against(GOOD, BAD, each_s=0.5)
    assert verdict_sentences(explanation)[0] == (
        "Better than bsp: it was at the target sooner, in 0.37x bsp's time (smoothed), and ended better: accuracy "
        "+4.7 points (mean of the last 3 evaluations)."
    )
    assert rows(explanation) == {
        "to accuracy 90.0 %, as evaluated": ("2 s", "6 s", "0.33x"),
        "to accuracy 90.0 %, smoothed": ("2.11 s", "5.71 s", "0.37x"),
        "accuracy in the end": ("98.0 %", "94.0 %", "+4.0 points"),
        "accuracy, last 3 evaluations": ("98.0 % (98.0 % to 98.0 %)", "93.3 % (92.0 % to 94.0 %)", "+4.7 points"),
        "the whole run": ("4 s", "8 s", "0.50x"),
    }


def test_worse_is_said_first_and_so_is_it_where_steps_were_shorter(against: Callable[..., Explanation]):
    """It took less time for all its samples, and came later to the target and worse to the end."""
    explanation = against(BAD, GOOD, each_s=0.9)
    assert verdict_sentences(explanation)[0] == (
        "Worse than bsp: it was at the target later, in 1.22x bsp's time (smoothed), and ended worse: accuracy "
        "-4.7 points (mean of the last 3 evaluations)."
    )
    assert rows(explanation)["the whole run"] == ("7.2 s", "8 s", "0.90x")


@pytest.mark.parametrize(
    ("ours", "theirs", "each_s", "lead", "words"),
    [
        (GOOD, GOOD, 1.0, "About the same as bsp", "about as soon, in 1.00x bsp's time (smoothed), and ended"),
        (GOOD, GOOD, 1.04, "About the same as bsp", "about as soon, in 1.04x bsp's time (smoothed), and ended as good"),
        (GOOD, GOOD, 1.06, "Worse than bsp", "later, in 1.06x bsp's time (smoothed), and ended as good"),
        (GOOD, GOOD, 2.0, "Worse than bsp", "2.00x bsp's time (smoothed), and ended as good"),
        ((*GOOD[:5], *EVEN), GOOD, 0.5, "Better than bsp in one way and worse in another", ", but ended worse: "),
        ((*GOOD[:7], 0.95), GOOD, 0.5, "Against bsp", "but ended perhaps worse: accuracy -1.0 points (mean"),
        (BAD[:5], GOOD, 1.0, "Worse than bsp", "did not reach the target, and bsp did, and ended worse: accuracy -10"),
        (GOOD, BAD[:5], 1.0, "Better than bsp", "reached the target, and bsp did not, and ended better"),
        (BAD[:5], BAD[:5], 1.0, "About the same as bsp", "did not reach the target, and neither did bsp"),
        (GOOD[3:7], GOOD[2:7], 1.0, "Better than bsp", "sooner, in 0.50x bsp's time (as evaluated), and ended as good"),
        ((*BAD[:6], 0.7, 0.7, 0.7), GOOD, 1.0, "Worse than bsp", "did not hold the target for more than a lucky"),
        ((*GOOD[:5], NAN, NAN, NAN), GOOD, 1.0, "Worse than bsp", "ended with no finite accuracy: it diverged"),
        (GOOD, (*GOOD[:5], NAN, NAN, NAN), 1.0, "Better than bsp", "ended at accuracy 98.0 % where bsp diverged"),
    ],
)  # fmt: skip
def test_every_way_that_it_may_come_out(
    against: Callable[..., Explanation],
    ours: Sequence[float],
    theirs: Sequence[float],
    each_s: float,
    lead: str,
    words: str,
):
    explanation = against(ours, theirs, each_s=each_s)
    [verdict, reservation] = verdict_sentences(explanation)
    assert verdict.startswith(f"{lead}: it ")
    assert words in verdict
    assert reservation.startswith("Measured, with the same task, 4 workers and seed 0.")
    render_explanation_page(explanation)


def test_readings_that_contradict_each_other_decide_nothing(against: Callable[..., Explanation]):
    lucky = (0.5, 0.95, 0.6, 0.7, 0.8, 0.9, 0.98, 0.98, 0.98)
    [verdict, _] = verdict_sentences(against(lucky, GOOD))
    assert verdict.startswith(
        "Against bsp: it was sooner at the target by one reading and later by the other, and ended"
    )


def test_without_a_target_the_time_is_that_of_all_samples_and_so_it_says(against: Callable[..., Explanation]):
    explanation = against(GOOD, GOOD, each_s=0.5, target=None)
    assert verdict_sentences(explanation)[0] == (
        "Better than bsp: it took 0.50x bsp's time for its samples (the time to a target is not known: no target was "
        "set), and ended as good (mean of the last 3 evaluations)."
    )
    assert not any("to accuracy" in what for what in rows(explanation))


def test_without_evaluations_it_is_not_known_whether_it_learned(against: Callable[..., Explanation]):
    explanation = against((), (), each_s=0.5, wall_s=2.0)
    assert verdict_sentences(explanation)[0].startswith("Whether it learned as well as bsp is not known: it took 1.00x")
    assert list(rows(explanation)) == ["the whole run"]
    assert metric_chart(explanation) is None


def test_without_bsp_nobody_knows_and_what_to_type_is_told(run_of: MakeRun):
    log = EventLog(policy=parse_policy("adaptive"), entries=())
    explanation = explanation_of(log, run_of(GOOD, policy="adaptive"), how_to_know="write plesio compare X")
    assert verdict_sentences(explanation) == [
        "Whether this run did better or worse than bsp is not known: no finished run of bsp with the same task, "
        "workers and seed is here. What is predicted for bsp below is the time of its steps, not what they would have "
        "learned. To find out, write plesio compare X.",
        "By itself: accuracy 90.0 % came after 4 s (smoothed: after 4.22 s); it ended at accuracy 98.0 %.",
    ]
    assert measured_table(explanation) is None


def test_metrics_that_read_alike_do_not_differ(against: Callable[..., Explanation]):
    ours, theirs = ((*GOOD[:5], *(0.98 + off for _ in range(3))) for off in (0.0, 2e-8))
    explanation = against(ours, theirs, metric_name="metric")
    assert rows(explanation)["metric, last 3 evaluations"][2] == rows(explanation)["metric in the end"][2] == "+0"


def test_a_run_that_did_not_finish_is_held_against_nothing(against: Callable[..., Explanation]):
    explanation = against(GOOD, GOOD, status="interrupted", error=None)
    assert verdict_sentences(explanation) == ["The run was interrupted."]
    assert measured_table(explanation) is None


def test_other_samples_and_other_seeds_are_told(against: Callable[..., Explanation]):
    explanation = against(GOOD, GOOD)
    assert explanation.bsp is not None
    explanation = dataclasses.replace(explanation, num_seeds=3, bsp=dataclasses.replace(explanation.bsp, samples=100))
    assert verdict_sentences(explanation)[1] == (
        "Measured, with the same task, 4 workers and seed 0, but with 51,200 samples where bsp had 100, so that the "
        "ends do not compare. One seed cannot tell small differences from chance; plesio report tells all 3 seeds here."
    )


def test_the_figure_draws_both_runs_raw_and_smoothed(against: Callable[..., Explanation]):
    drawn = metric_chart(against(GOOD, (*BAD, NAN)))
    assert drawn is not None
    assert drawn.title == "It ended at accuracy 98.0 %"  # where bsp ended is not known
    lines = [(trace.name, trace.mode, len(trace.x)) for trace in draw_figure(drawn).data]
    # of nine evaluations one has no value, and two no smoothed one
    assert lines == [
        ("bsp", "markers", 8), ("bsp", "lines", 7), ("this run", "markers", 8), ("this run", "lines", 8)
    ]  # fmt: skip
    assert draw_figure(drawn).layout.shapes[0].y0 == pytest.approx(90)
    few = metric_chart(against(GOOD[:4], GOOD[:4]))
    assert few is not None
    assert [trace.mode for trace in draw_figure(few).data] == ["markers", "lines"] * 2


@pytest.mark.parametrize(
    ("ours", "words", "finding"),
    [
        ((0.95, 0.99, 0.97), "accuracy is not shown to differ in the end (p = 0.", "no difference shown"),
        ((0.90, 0.91, 0.90), "ended worse: accuracy -7.", "worse"),
        ((0.99, 0.9902, 0.9901), "ended better: accuracy +1.", "better"),
        ((0.99, 0.9902), "not shown to differ in the end (2 seeds: too few for a test", "no difference shown"),
    ],
)
def test_over_several_seeds_it_says_what_a_comparison_of_the_same_runs_says(
    against: Callable[..., Explanation], ours: tuple[float, ...], words: str, finding: str
):
    """With the first seed alone it "ended perhaps worse"."""
    theirs = dict(enumerate((0.98, 0.9801, 0.9802)[: len(ours)]))
    over = difference_of(Spread.of(dict(enumerate(ours))), baseline=Spread.of(theirs))
    explanation = dataclasses.replace(against((*GOOD[:7], 0.95), GOOD), num_seeds=len(ours), over_seeds=over)
    assert words in verdict_sentences(explanation)[0]
    assert finding_of(over, metric=metric_of(explanation)).replace("equal", "no difference shown") == finding
