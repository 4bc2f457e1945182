"""The explanation of adaptive runs whose events are made up: its figures and its sentences."""

from collections.abc import Callable

import pytest
from msgspec import structs

from plesio.core.errors import DataError
from plesio.core.results import RunResult
from plesio.policies import EventLog, Resumed, parse_policy
from plesio.policies.replay import LogEntry
from plesio.report.explanation import (
    Explanation,
    closing_sentences,
    explanation_charts,
    explanation_of,
    explanation_sentences,
    heading_text,
    measured_table,
    render_explanation_page,
    verdict_sentences,
)
from support.adaptive_logs import DIVERGED, EVEN, LOOSER, NETWORK, SLOW, compared, log_of, reviewed, steer

MakeRun = Callable[..., RunResult]


def test_chapters_lie_between_changes_and_cover_the_run(network: Explanation):
    assert [(one.begin, one.end, one.policy, one.slack) for one in network.chapters] == [
        (0, 21, "bsp", 0),
        (21, 40, "local_sgd:2", 1),
    ]
    assert [(one.begin, one.end) for one in network.spans] == [(0, 5), (5, 21), (21, 38), (38, 40)]
    assert [one.end_s for one in network.chapters] == pytest.approx([0.84, 1.6])


def test_what_a_step_took_is_measured_and_what_bsp_would_have_is_predicted(network: Explanation):
    first, second = network.chapters
    assert first.step_s == first.bsp_step_s == pytest.approx(0.040)
    assert first.saved_s == 0
    # 17 steps of 20 ms against 42 ms; then, with no review to tell, 2 steps of 40 ms by the training clock
    assert second.step_s == pytest.approx((17 * 0.020 + 2 * 0.040) / 19)
    assert second.bsp_step_s == pytest.approx(0.042)
    assert second.saved_s == second.saved_so_far_s == network.saved_s == pytest.approx(17 * 0.022 + 2 * 0.002)
    assert network.predicted_bsp_s == pytest.approx(21 * 0.040 + 19 * 0.042)


def test_a_prediction_that_knew_no_exchange_yet_is_not_used(adaptive_run: MakeRun):
    log = log_of(
        (reviewed(3, EVEN, [0.0] * 3), steer(5, "local_sgd:4", before="local_sgd:4")),
        (reviewed(12, EVEN, [0.0] * 9), steer(14, "local_sgd:4", before="local_sgd:4", inputs=LOOSER)),
    )
    spans = explanation_of(log, adaptive_run(steps=20)).spans
    assert [span.bsp_step_s for span in spans] == [0.040, 0.040, 0.040]


def test_bytes_are_counted_by_exchanges(network: Explanation):
    assert [one.num_exchanges for one in network.chapters] == [21, 10]
    assert [one.bytes_saved for one in network.chapters] == [0, 9_000]


@pytest.mark.parametrize(
    ("excess", "after", "words"),
    [
        (0.1, "local_sgd:2", "21 steps: the loss showed no harm."),
        (0.6, "bsp", "21 steps: the loss was 0.6 above the one to be expected, and 0.5 is too much."),
        (None, "bsp", ""),
    ],
)
def test_the_end_of_a_trial_is_told_with_its_change(
    adaptive_run: MakeRun, excess: float | None, after: str, words: str
):
    """The fourth answer ends another trial."""
    end = {} if excess is None else {"trial.excess": excess, "trial.most": 0.5}
    log = log_of(
        (reviewed(2, EVEN, [0.030] * 2, loss=1.0), steer(3, "bsp", before="bsp")),
        (reviewed(3, EVEN, [0.030], loss=1.0), steer(5, "local_sgd:2", before="bsp", inputs=LOOSER)),
        (reviewed(19, EVEN, [0.0] * 14), steer(21, after, before="local_sgd:2", inputs=end)),
        (reviewed(35, EVEN, [0.0] * 14), steer(37, after, before=after, inputs={"trial.excess": 1, "trial.most": 2})),
    )
    text = explanation_sentences(explanation_of(log, adaptive_run(steps=40)))[1]
    assert text.partition(" Its trial ended after ")[2] == words


@pytest.mark.parametrize(
    ("before", "tried", "after", "told"),
    [
        ("bsp", "local_sgd:2", "bsp", True),
        ("bsp", "bsp,compress=qsgd:8", "local_sgd:2", True),
        ("bsp,compress=powersgd:4", "local_sgd:2", "bsp", True),
        ("local_sgd:2", "local_sgd:2,compress=qsgd:8", "bsp", False),
        ("local_sgd:4", "local_sgd:2", "bsp", False),
        ("local_sgd:4", "bsp,compress=qsgd:8", "bsp", False),
    ],
)
def test_a_setting_that_is_left_before_its_trial_ends_gets_a_word(
    adaptive_run: MakeRun, before: str, tried: str, after: str, told: bool
):
    rounds = (
        (reviewed(2, EVEN, [0.030] * 2, loss=1.0), steer(3, before, before=before)),
        (reviewed(3, EVEN, [0.030] * 1, loss=1.0), steer(5, tried, before=before, inputs=LOOSER)),
        (reviewed(19, EVEN, [0.0] * 14, loss=1.0), steer(21, tried, before=tried, inputs=LOOSER)),
        (reviewed(35, EVEN, [0.0] * 14, loss=1.0), steer(37, after, before=tried, inputs=LOOSER)),
    )
    text = explanation_sentences(explanation_of(log_of(*rounds), adaptive_run(steps=40)))[1]
    assert ("It was left after 37 steps, before its trial ended." in text) is told
    too_early = explanation_of(log_of(*rounds[1:]), adaptive_run(steps=40))
    assert "its trial" not in " ".join(explanation_sentences(too_early))
    assert "Its trial" not in text


@pytest.mark.parametrize(
    ("bsp_s", "words"),
    [
        (1.7, "In all it took 1.6 s, where bsp took 1.7 s: 100 ms less (6 %). For bsp 1.64 s had been predicted. This"),
        (
            0.8,
            "In all it took 1.6 s, where bsp took 800 ms: 800 ms more (100 %). For bsp 1.64 s had been predicted, "
            "2.05x what it took; what is predicted for it above is off by as much. This",
        ),
        (1.6, "In all it took 1.6 s, as long as bsp. For bsp 1.64 s had been predicted. This"),
    ],
)
def test_a_run_of_bsp_is_compared_with_and_the_prediction_named_beside_it(
    adaptive_run: MakeRun, make_run: MakeRun, bsp_s: float, words: str
):
    [text] = closing_sentences(explanation_of(NETWORK, adaptive_run(), bsp=make_run("bsp", 0, wall_s=bsp_s)))
    assert text.startswith(words)


def test_the_beginning_is_told_by_one_clock(adaptive_run: MakeRun):
    """The reviews tell of 40 ms a step, the training clock of 50 ms."""
    slower = explanation_of(NETWORK, adaptive_run(wall_s=2.0, losses=()))
    assert explanation_sentences(slower)[0].startswith("It began under bsp: 21 steps in 1.05 s, 50 ms each.")


def test_the_sentences(network: Explanation):
    assert heading_text(network) == "digits under adaptive, seed 0, 4 workers: 1 change in 40 steps, 1.6 s."
    assert explanation_sentences(network) == [
        "It began under bsp: 21 steps in 840 ms, 40 ms each. At the latest review, after 5 steps, it stayed with this "
        "because reasons.",
        "After 21 steps (840 ms) it went from bsp to local_sgd:2, because a step of local_sgd:2 takes 20 ms where one "
        "of bsp takes 40 ms, and is worth 0.80 to 1.00 of it. A step then took 22.1 ms instead of the 42 ms predicted "
        "for bsp: 378 ms less step time until the end. These steps took 760 ms by the clock, 340 ms of it the exchange "
        "that ended them. Its trial ended after 38 steps: a step was worth 0.85 to 0.95 "
        "of bsp's. At the latest review, after 38 steps, it stayed with this because local_sgd:2 has the most progress "
        "per second.",
    ]
    assert closing_sentences(network) == [
        "In all it took 1.6 s. Its steps took 1.26 s, where 1.64 s are predicted for bsp: 378 ms less step time "
        "(23 %). This is time, not what the steps taught. It exchanged 31 times in 40 steps, which saved 9 kB (22 %)."
    ]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("bsp,compress=qsgd:8", "bsp", "It compressed 5 of its 40 exchanges, which saved 3.7"),
        ("bsp", "local_sgd:8", "It exchanged 10 times in 40 steps, which saved 30 kB (75 %)."),
        (
            "bsp",
            "local_sgd:8,compress=qsgd:8",
            "It exchanged 10 times in 40 steps and compressed 5 of these exchanges, which together saved",
        ),
        (
            "bsp,compress=qsgd:8",
            "bsp,compress=qsgd:8",
            "It compressed 40 of its 40 exchanges, which saved 29.7 kB (75 %).",
        ),
        ("bsp", "bsp,compress=powersgd:4", "It compressed 35 of its 40 exchanges, which saved 28 kB (70 %)."),
    ],
)
def test_what_was_not_sent_is_told_by_its_cause(adaptive_run: MakeRun, first: str, second: str, words: str):
    """bsp sends 40 exchanges of 1 kB; 8 bits in place of 32, with their scales, are 0.252 of that, low rank as told."""
    answer = steer(5, second, before=first, inputs=LOOSER)
    log = log_of((reviewed(3, EVEN, [0.030] * 3, low_rank_share=0.2), answer))
    known = {"local_sgd:8": 10, "bsp": 36.25, "bsp,compress=qsgd:8": 10, "bsp,compress=powersgd:4": 12}
    in_full = known.get(second, 6.25)
    explanation = explanation_of(log, adaptive_run(bytes_sent_total=round(1_000 * in_full)))
    assert words in closing_sentences(explanation)[0]


def test_steps_by_racks_are_told_with_what_they_send(adaptive_run: MakeRun, make_run: MakeRun):
    """Two racks of two: a step within them is 2/3 of an exchange of all, one between racks 1/3 and half of that 2/3."""
    delayed = "hier:bsp/local_sgd:4,delay=2"
    apart = [structs.replace(one, rack=one.worker // 2) for one in reviewed(3, EVEN, [0.030] * 3)]
    log = log_of(
        (apart, steer(5, delayed, before="bsp", inputs=LOOSER)),
        (reviewed(19, EVEN, [0.01] * 14), steer(21, "hier:bsp/local_sgd:4", before=delayed, inputs=LOOSER)),
    )
    run = adaptive_run(bytes_sent_total=33_000, bytes_sent_cross_rack=2_000)
    explanation = explanation_of(
        log, run, bsp=make_run("bsp", 0, bytes_sent_total=40_000, bytes_sent_cross_rack=20_000)
    )
    assert [(one.policy, one.slack, one.num_exchanges) for one in explanation.chapters] == [
        ("bsp", 0, 5),
        (delayed, 5, 4),
        ("hier:bsp/local_sgd:4", 3, 5),
    ]
    in_full = [5, 16 * 2 / 3 + 4 * 2 / 3, 19 * 2 / 3 + 5 * 2 / 3]
    expected = [(steps - sent) * 33_000 / sum(in_full) for steps, sent in zip((5, 16, 19), in_full, strict=True)]
    assert [one.bytes_saved for one in explanation.chapters] == pytest.approx(expected)
    assert "It exchanged among racks 14 times in 40 steps, which saved" in closing_sentences(explanation)[0]
    table = measured_table(explanation)
    assert table is not None
    rows = {what: compared for what, *_, compared in table.rows}
    assert (rows["bytes sent"], rows["bytes between racks"]) == ("0.82x", "0.10x")


def test_shares_save_what_equal_ones_would_have_cost(adaptive_run: MakeRun):
    explanation = explanation_of(SLOW, adaptive_run(steps=37))
    [chapter] = explanation.changes
    assert chapter.change is not None
    assert chapter.step_s == pytest.approx((14 * 0.014 + 2 * 0.014) / 16)
    assert chapter.bsp_step_s == pytest.approx(0.032)  # the slow worker's 30 ms, and 2 ms to exchange
    assert chapter.change.pace_s == pytest.approx([0.010, 0.010, 0.010, 0.030])
    assert (
        "it gave the workers shares of 30 %, 30 %, 30 % and 10 % of each round, because a step with equal shares took "
        "30 ms on worker 3 and 10 ms on the others."
    ) in explanation_sentences(explanation)[1]
    assert [figure.slug for figure in explanation_charts(explanation)][-1] == "shares"


def test_going_back_is_told_with_the_state_that_was_kept(adaptive_run: MakeRun):
    explanation = explanation_of(DIVERGED, adaptive_run(steps=30))
    last = explanation.chapters[-1]
    assert last.change is not None
    assert (last.change.restored, last.change.restored_to) == (True, 6)
    assert explanation_sentences(explanation)[-1].startswith(
        "After 22 steps (880 ms) it went from local_sgd:2 to bsp and it took the workers back to the state of step 6, "
        "because the loss is 9, 12 times its noise above 1. A step then took 40 ms, until the end."
    )


def test_a_run_in_which_nothing_changed_gets_one_sentence(adaptive_run: MakeRun):
    reason = "no slack saves enough: bsp takes 40 ms a step"
    log = log_of((reviewed(3, EVEN, [0.0] * 3), steer(5, "bsp", before="bsp", reason=reason)))
    explanation = explanation_of(log, adaptive_run(steps=12))
    assert explanation_sentences(explanation) == [f"Nothing changed: all 12 steps ran under bsp, because {reason}."]
    assert closing_sentences(explanation) == []
    never_asked = explanation_of(log_of(), adaptive_run(steps=2))
    assert explanation_sentences(never_asked) == [
        "Nothing changed: all 2 steps ran under bsp, for it ended before the first review."
    ]


def test_a_run_may_begin_with_slack(adaptive_run: MakeRun):
    log = log_of(
        (
            reviewed(4, EVEN, [0.0, 0.0, 0.0, 0.040]),
            steer(8, "local_sgd:4", before="local_sgd:4", inputs=compared({"bsp": 0.050})),
        )
    )
    explanation = explanation_of(log, adaptive_run(steps=8, bytes_sent_total=100))
    assert explanation_sentences(explanation) == [
        "Nothing changed: all 8 steps ran under local_sgd:4, because reasons."
    ]
    assert closing_sentences(explanation) == [
        "In all it took 320 ms. Its steps took 160 ms, where 400 ms are predicted for bsp: 240 ms less step time "
        "(60 %). This is time, not what the steps taught. It exchanged 2 times in 8 steps, which saved 300 B (75 %)."
    ]
    fast = compared({"bsp": 0.015})
    before_it_changed = log_of(
        (reviewed(4, EVEN, [0.0, 0.0, 0.0, 0.040]), steer(8, "bsp", before="local_sgd:4", inputs=fast))
    )
    assert explanation_sentences(explanation_of(before_it_changed, adaptive_run(steps=9)))[0] == (
        "It began under local_sgd:4. A step took 20 ms instead of the 15 ms predicted for bsp: 40 ms more step time "
        "until step 8. These steps took 320 ms by the clock, 160 ms of it the exchange that ended them."
    )


@pytest.mark.parametrize(("slow", "why"), [(True, ", for sending all parameters took a second or more"), (False, "")])
def test_a_beginning_over_slow_links_has_its_reason(adaptive_run: MakeRun, slow: bool, why: str):
    first = reviewed(4, EVEN, [0.0] * 4, began_slow=slow)
    log = log_of((first, steer(8, "bsp", before="bsp,compress=qsgd:8", inputs=compared({"bsp": 0.015}))))
    text = explanation_sentences(explanation_of(log, adaptive_run(steps=9)))[0]
    assert text.startswith(f"It began under bsp,compress=qsgd:8{why}. A step took ")


def test_a_run_that_crashed_is_told_as_far_as_it_went(adaptive_run: MakeRun):
    lost = adaptive_run(steps=0, wall_s=0.0, losses=(), status="failed", error="worker 2 was lost")
    explanation = explanation_of(log_of(), lost)
    assert explanation_sentences(explanation) == ["No step was finished, so there is nothing to tell."]
    assert verdict_sentences(explanation) == ["The run failed: worker 2 was lost."]
    assert closing_sentences(explanation) == []
    assert explanation_charts(explanation) == []
    render_explanation_page(explanation)
    silent = explanation_of(NETWORK, lost)  # the events outlived the figures
    assert silent.num_steps == 36
    assert [one.end for one in silent.chapters] == [21, 36]


def test_a_change_that_no_step_followed_is_not_told(adaptive_run: MakeRun):
    assert [one.end for one in explanation_of(NETWORK, adaptive_run(steps=36)).chapters] == [21, 36]
    at_the_end = log_of((reviewed(3, EVEN, [0.0] * 3), steer(5, "local_sgd:2", before="bsp")))
    assert len(explanation_of(at_the_end, adaptive_run(steps=5)).chapters) == 1


def test_a_log_of_a_static_policy_has_no_explanation(adaptive_run: MakeRun):
    with pytest.raises(DataError, match=r"the events are those of ssp:4, which changes nothing"):
        explanation_of(EventLog(policy=parse_policy("ssp:4"), entries=()), adaptive_run())


def test_gradients_are_told_as_the_policy_sees_them(adaptive_run: MakeRun):
    log = log_of((reviewed(3, EVEN, [0.0] * 3, gradients=((1.0, 4.0, 2.0, 0.0), (2.0, 4.0, 2.0, 0.0))), None))
    [noise] = explanation_of(log, adaptive_run(steps=3)).noises
    assert (noise.clock, noise.norm, noise.noise_scale) == (3, 2.0, 0.0)


@pytest.mark.parametrize("clock", [21, 20, 27], ids=["after its answer held", "before", "later"])
def test_a_run_that_a_worker_joined_is_explained(clock: int, adaptive_run: MakeRun):
    """A new group goes on under what was in force, without a review; an answer that it overtook never held."""
    first = (reviewed(19, EVEN, [0.030] * 19), steer(21, "local_sgd:2", before="bsp", inputs=LOOSER))
    resumed = LogEntry(
        event=Resumed(clock=clock),
        actions=(steer(clock, "local_sgd:2", before="local_sgd:2", reason="the workers go on in a new group"),),
    )
    after = log_of((reviewed(clock + 16, EVEN, [0.0, 0.020] * 8), None))
    log = EventLog(policy=after.policy, entries=(*log_of(first).entries, resumed, *after.entries))
    explanation = explanation_of(log, adaptive_run(steps=clock + 17))
    assert [(one.begin, one.end) for one in explanation.chapters] == [(0, min(21, clock)), (min(21, clock), clock + 16)]
    assert explanation.chapters[1].step_s == pytest.approx(0.020, abs=0.006)
    assert explanation.chapters[1].bsp_step_s == pytest.approx(0.040)
    assert [review.clock for review in explanation.reviews] == [21]
    assert "new group" not in " ".join(explanation_sentences(explanation))
    assert render_explanation_page(explanation)


def test_a_reason_that_reviews_keep_is_that_of_the_latest(adaptive_run: MakeRun):
    """The first review knew nothing of the noise; the run went on for long after it was known."""
    log = log_of(
        (reviewed(3, EVEN, [0.0] * 3), steer(5, "bsp", before="bsp", reason="the noise is not known yet")),
        (reviewed(19, EVEN, [0.0] * 16), steer(21, "bsp", before="bsp", reason="the noise allows no slack")),
    )
    [text] = explanation_sentences(explanation_of(log, adaptive_run(steps=40)))
    assert text == "Nothing changed: all 40 steps ran under bsp, because the noise allows no slack."


def test_a_reason_that_differs_in_its_figures_alone_is_not_repeated(adaptive_run: MakeRun):
    text = "a step of local_sgd:2 takes {} where one of bsp takes {}, and is worth {} of it"
    slow = text.format("950 ms", "1.25 s", "0.94 to 0.97")
    fast = text.format("1.1 s", "2 s", "0.96 to 1.00")
    log = log_of(
        (reviewed(3, EVEN, [0.0] * 3), steer(5, "local_sgd:2", before="bsp", reason=slow, inputs=LOOSER)),
        (reviewed(19, EVEN, [0.0] * 14), steer(21, "local_sgd:2", before="local_sgd:2", reason=fast, inputs=LOOSER)),
    )
    explanation = explanation_of(log, adaptive_run(steps=40))
    assert "latest review" not in " ".join(explanation_sentences(explanation))
    assert explanation.chapters[1].latest is not None
    assert (explanation.chapters[1].latest.clock, explanation.chapters[1].latest.reason) == (21, fast)
