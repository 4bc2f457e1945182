import dataclasses
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import DataError
from plesio.core.results import RunResult, Staleness
from plesio.report.model import PolicySummary
from plesio.report.sentences import policy_sentence
from plesio.report.summarise import compare_runs

GOLDEN = Path(__file__).parent / "golden"
MakeRun = Callable[..., RunResult]


def assert_close(found: Any, expected: Any, *, at: str = "comparison") -> None:
    """Equal but for the last digits that a platform's mathematics may change."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key in expected:
            assert_close(found[key], expected[key], at=f"{at}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for place, item in enumerate(expected):
            assert_close(found[place], item, at=f"{at}[{place}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), at
    else:
        assert found == expected, at


def test_the_golden_comparison():
    """A difference here is a change of what reports say: see `golden/renew.py`."""
    renew = runpy.run_path(str(GOLDEN / "renew.py"))
    assert_close(renew["computed"](), json.loads((GOLDEN / "comparison.json").read_text(encoding="utf-8")))


def summary_of(runs: list[RunResult], policy: str) -> PolicySummary:
    return next(summary for summary in compare_runs(runs).policies if summary.policy == policy)


def sentence_of(runs: list[RunResult], policy: str) -> str:
    return policy_sentence(summary_of(runs, policy), comparison=compare_runs(runs))


def change(runs: list[RunResult], policy: str, seed: int, **values: Any) -> list[RunResult]:
    return [dataclasses.replace(run, **values) if (run.policy, run.seed) == (policy, seed) else run for run in runs]


def test_bsp_is_the_baseline_wherever_it_stands(all_runs: list[RunResult]):
    comparison = compare_runs(all_runs[::-1])
    assert comparison.baseline == "bsp"
    assert comparison.baseline_summary.contrast is None
    assert [summary.policy for summary in comparison.policies][-1] == "bsp"


def test_without_bsp_the_first_policy_is_the_baseline(all_runs: list[RunResult]):
    comparison = compare_runs([run for run in all_runs if run.policy != "bsp"])
    assert comparison.baseline == "ssp:4"


def test_identical_runs_are_called_the_same(all_runs: list[RunResult]):
    bsp = [run for run in all_runs if run.policy == "bsp"]
    runs = bsp + [dataclasses.replace(run, policy="ssp:0") for run in bsp]
    sentence = sentence_of(runs, "ssp:0")
    assert "1.00x as fast as bsp with 1.00x the bytes" in sentence
    assert "the same on each of 3 seeds" in sentence
    assert "No gain shown: stay with bsp." in sentence


def test_one_seed_gives_no_p_value_and_no_advice(make_run: MakeRun):
    sentence = sentence_of([make_run("bsp", 0), make_run("asp", 0)], "asp")
    assert "1 seed: too few for a test" in sentence
    assert "p =" not in sentence
    assert "Run at least 3 seeds" in sentence


def test_failed_runs_are_named_and_left_out(all_runs: list[RunResult]):
    runs = change(all_runs, "asp", 1, status="failed", error="worker 2 was lost", lost_workers=(2,), wall_s=1e9)
    summary = summary_of(runs, "asp")
    assert summary.seeds == (0, 2)
    assert summary.unfinished == ((1, "failed", "worker 2 was lost"),)
    assert summary.time_s is not None
    assert summary.time_s.mean < 1e6
    assert summary.contrast is not None
    assert summary.contrast.metric is not None
    assert not summary.contrast.metric.paired
    sentence = sentence_of(runs, "asp")
    assert "Seed 1 failed and is left out." in sentence
    assert "Lost: worker 2 (seed 1)." in sentence


def test_a_policy_or_a_baseline_that_never_finished_is_not_compared(all_runs: list[RunResult]):
    def interrupted(policy: str) -> list[RunResult]:
        return [dataclasses.replace(run, status="interrupted") if run.policy == policy else run for run in all_runs]

    assert "asp has no finished run" in sentence_of(interrupted("asp"), "asp")
    assert "bsp has no finished run to compare with" in sentence_of(interrupted("bsp"), "asp")


def test_a_run_that_diverged_is_counted_as_such(all_runs: list[RunResult]):
    runs = change(all_runs, "asp", 2, final_metric=None)
    assert "Only 2 of 3 evaluated runs ended with a finite accuracy." in sentence_of(runs, "asp")


def test_a_policy_that_was_never_evaluated_has_missed_nothing(all_runs: list[RunResult]):
    runs = all_runs
    for seed in range(3):
        runs = change(runs, "asp", seed, final_metric=None, evaluations=(), time_to_target_s=None)
    said = sentence_of(runs, "asp")
    assert "3 of 3 finished runs were not evaluated." in said
    assert "finite" not in said
    assert "reached" not in said
    assert summary_of(runs, "asp").to_target is None


def test_missing_the_target_is_told_and_gives_no_ratio(all_runs: list[RunResult]):
    runs = change(all_runs, "ssp:4", 0, time_to_target_s=None)
    summary = summary_of(runs, "ssp:4")
    assert summary.to_target is not None
    assert (summary.to_target.num_reached, summary.to_target.num_runs) == (2, 3)
    assert summary.contrast is not None
    assert summary.contrast.to_target is None
    assert "reached 97.0 % on 2 of 3 seeds" in sentence_of(runs, "ssp:4")
    assert "less sure of reaching the target" in sentence_of(runs, "ssp:4")


def with_figures(
    runs: list[RunResult], policy: str, *, slower: float, metrics: tuple[float, ...], num_bytes: int
) -> list[RunResult]:
    """``policy`` made of the bsp runs: ``slower`` times as slow (a little apart), ending at ``metrics``."""
    bsp = [run for run in runs if run.policy == "bsp"]
    return bsp + [
        dataclasses.replace(
            run,
            policy=policy,
            wall_s=run.wall_s * slower * (1 + 0.001 * place),
            final_metric=metrics[place],
            bytes_sent_total=num_bytes,
            target=run.target,
            time_to_target_s=None if run.time_to_target_s is None else run.time_to_target_s * slower,
        )
        for place, run in enumerate(bsp)
    ]


@pytest.mark.parametrize(
    ("slower", "offset", "num_bytes", "verdict"),
    [
        (0.5, 0.0, 71_000_000, "Faster, and accuracy is not shown to suffer."),
        (0.5, -0.1, 71_000_000, "Faster, at a price in accuracy."),
        (0.5, 0.01, 71_000_000, "Faster and better in accuracy."),
        (2.0, 0.0, 71_000_000, "Slower: stay with bsp."),
        (2.0, -0.1, 1_000, "Slower and worse in accuracy: stay with bsp."),
        (2.0, 0.0, 1_000, "Slower, but it sends less: worth it where the network is the limit."),
        (2.0, 0.01, 71_000_000, "Better in accuracy, for more time."),
        (0.996, 0.0, 71_000_000, "No gain shown: stay with bsp."),  # 1.00x as fast
        (0.996, 0.01, 1_000, "1.00x as fast. Better in accuracy."),
        (0.996, 0.0, 1_000, "Not faster, but it sends less: worth it where the network is the limit."),
    ],
)
def test_the_verdict_follows_what_the_seeds_show(
    all_runs: list[RunResult], slower: float, offset: float, num_bytes: int, verdict: str
):
    finals = [run.final_metric for run in all_runs if run.policy == "bsp"]
    wobble = (0.0001, -0.0001, 0.0)
    metrics = tuple(final + offset + wobble[place] for place, final in enumerate(finals) if final is not None)
    runs = with_figures(all_runs, "other", slower=slower, metrics=metrics, num_bytes=num_bytes)
    assert sentence_of(runs, "other").endswith(verdict)


def test_less_is_better_where_the_goal_is_min(all_runs: list[RunResult]):
    runs = with_figures(all_runs, "other", slower=0.5, metrics=(10.0, 10.2, 10.1), num_bytes=1)
    values: dict[str, Any] = {
        "metric_name": "perplexity",
        "metric_goal": "min",
        "target": None,
        "time_to_target_s": None,
    }
    runs = [dataclasses.replace(run, **values) for run in runs]
    runs = [
        run if run.policy == "other" else dataclasses.replace(run, final_metric=12.5 + 0.1 * run.seed) for run in runs
    ]
    sentence = sentence_of(runs, "other")
    assert "perplexity 10.1 against 12.6" in sentence
    assert "%" not in sentence
    assert sentence.endswith("Faster and better in perplexity.")


def test_which_is_better_is_not_told_where_the_metric_went_the_other_way(all_runs: list[RunResult]):
    runs = with_figures(all_runs, "other", slower=0.5, metrics=(0.101, 0.102, 0.1), num_bytes=1)

    def fallen(run: RunResult, **values: Any) -> RunResult:
        points = tuple(dataclasses.replace(point, metric=1 - point.metric) for point in run.evaluations)
        return dataclasses.replace(run, metric_name="cost", evaluations=points, **values)

    sentence = sentence_of([fallen(run) for run in runs], "other")
    assert "p < 0.001, 3 seeds: lower)" in sentence
    assert sentence.endswith('more of it counts as better; if less of it is, write session.evaluate(..., goal="min").')
    told = sentence_of([fallen(run, metric_goal="min") for run in runs], "other")
    assert told.endswith("Faster and better in cost.")


def test_virtual_seconds_count_in_the_virtual_world(make_run: MakeRun):
    run = make_run("bsp", 0, world="virtual", wall_s=0.5, virtual_s=40.0)
    summary = summary_of([run], "bsp")
    assert summary.time_s is not None
    assert summary.time_s.mean == 40.0


def test_a_run_that_measured_nothing_can_be_reported(make_run: MakeRun):
    run = make_run(
        "asp", 0, workers=(), evaluations=(), losses=(), final_metric=None, samples=0, steps=0, wall_s=0.0,
        bytes_sent={}, bytes_sent_total=0, time_to_target_s=None, staleness=Staleness.of({}),
    )  # fmt: skip
    summary = summary_of([make_run("bsp", 0), run], "asp")
    assert summary.wait_share is None
    assert summary.samples_per_s is None
    assert "There is not enough to judge it by." in sentence_of([make_run("bsp", 0), run], "asp")


def test_staleness_is_pooled_over_seeds(make_run: MakeRun):
    runs = [make_run("asp", 0, staleness=Staleness.of({0: 3})), make_run("asp", 1, staleness=Staleness.of({4: 1}))]
    assert summary_of(runs, "asp").staleness == Staleness.of({0: 3, 4: 1})


@pytest.mark.parametrize(
    ("name", "value"), [("task", "images"), ("num_workers", 8), ("world", "virtual"), ("target", 0.5)]
)
def test_runs_that_do_not_belong_together_are_refused(make_run: MakeRun, name: str, value: Any):
    with pytest.raises(DataError, match=f"different {name}"):
        compare_runs([make_run("bsp", 0), make_run("bsp", 1, **{name: value})])


def test_a_seed_that_finished_twice_is_refused(make_run: MakeRun):
    with pytest.raises(DataError, match="two finished runs of one seed"):
        compare_runs([make_run("bsp", 0), make_run("bsp", 0)])


def test_no_runs_are_refused():
    with pytest.raises(DataError, match="no runs"):
        compare_runs([])
