"""Runs that change by a schedule, explained: of made-up events, every figure worked out by hand; and of real ones."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from torch.optim import SGD
from torch.utils.data import DataLoader

import plesio
from plesio.cli.commands import invoke
from plesio.core.errors import DataError
from plesio.core.records import to_values
from plesio.core.results import LossPoint, RunResult, read_results
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import Constant
from plesio.policies import Arrived, EventLog, LeaveReason, Left, Reviewed, Steer, parse_policy, read_log
from plesio.policies.events import Event
from plesio.policies.replay import LogEntry
from plesio.protocol.figures import RunInfo
from plesio.report.charts import draw_figure
from plesio.report.explanation import (
    Explanation,
    closing_sentences,
    explanation_charts,
    explanation_of,
    explanation_sentences,
    heading_text,
    measured_table,
    render_explanation_page,
)
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.browser import check_figures, load, opened
from support.problems import Problem, perceptron

MakeRun = Callable[..., RunResult]
POLICY = "switch:bsp/asp@10/local_sgd:4@30"


def log_of(*entries: Event | Steer, policy: str = POLICY) -> EventLog:
    """Events, and answers: each to the event before it."""
    found: list[LogEntry] = []
    for one in entries:
        if isinstance(one, Steer):
            found[-1] = LogEntry(event=found[-1].event, actions=(one,))
        else:
            found.append(LogEntry(event=one, actions=()))
    return EventLog(policy=parse_policy(policy), entries=tuple(found))


def steer(clock: int, policy: str, *, before: str) -> Steer:
    reason = f"the schedule changes at step {clock}"
    return Steer(clock=clock, before=before, policy=policy, next_review=0, next_clock=1, reason=reason)


def arrivals(worker: int, *, after: int, num_steps: int, steps_each: int = 1) -> list[Event]:
    clocks = range(after + steps_each, after + num_steps + 1, steps_each)
    return [Arrived(worker=worker, clock=clock, num_steps=steps_each) for clock in clocks]


BEGUN = (Reviewed(worker=0, clock=8, samples=(), compute_s=(), blocked_s=()), steer(10, "asp", before="bsp"))
THREE_STAGES = log_of(
    *BEGUN,
    *arrivals(0, after=10, num_steps=20, steps_each=2),
    *arrivals(1, after=10, num_steps=8),
    steer(30, "local_sgd:4", before="asp"),
)
"""Ten steps of each of two workers; then 20 steps of one and 8 of the other; then what is left."""


@pytest.fixture
def switch_run(make_run: MakeRun) -> MakeRun:
    def make(*, steps: int = 68, times_s: Sequence[float] = (0.0, 0.4, 1.24, 1.64), **values: object) -> RunResult:
        """Times are those at steps 0, 10, 30 and 40."""
        known = zip((0, 10, 30, 40), times_s, strict=False)
        losses = tuple(LossPoint(clock=clock, at_s=at_s, loss=1.0) for clock, at_s in known)
        values = {
            "policy": POLICY, "num_workers": 2, "steps": steps, "wall_s": times_s[-1], "losses": losses,
            "bytes_sent_total": 5_000, "bytes_sent": {"collective": 3_000, "ipc": 1_900, "tcp": 100}, **values,
        }  # fmt: skip
        return dataclasses.replace(make_run("bsp", 0), **values)

    return make


@pytest.fixture
def explanation(switch_run: MakeRun) -> Explanation:
    return explanation_of(THREE_STAGES, switch_run())


def test_a_stage_has_its_policy_its_steps_and_its_time(explanation: Explanation):
    assert [(one.begin, one.end, one.policy, one.slack) for one in explanation.chapters] == [
        (0, 10, "bsp", 0),
        (10, 30, "asp", 1),
        (30, 40, "local_sgd:4", 3),
    ]
    assert [one.begin_s for one in explanation.chapters] == pytest.approx([0, 0.4, 1.24])
    # of 840 ms on the store a worker made 14 steps on average
    assert [one.step_s for one in explanation.chapters] == pytest.approx([0.04, 0.06, 0.04])
    assert [one.steps_made for one in explanation.chapters] == [(), (20, 8), ()]
    assert [one.num_exchanges for one in explanation.chapters] == [10, 20, 3]
    assert (explanation.server_bytes, explanation.outcome.bytes_sent) == (2_000, 5_000)


def test_the_sentences(explanation: Explanation):
    assert heading_text(explanation) == f"digits under {POLICY}, seed 0, 2 workers: 2 changes in 40 steps, 1.64 s."
    assert explanation_sentences(explanation) == [
        "It began under bsp: 10 steps in 400 ms, 40 ms each.",
        "After 10 steps (400 ms) it went from bsp to asp, because the schedule changes at step 10. A step then took "
        "60 ms, until step 30; the workers made between 8 and 20 steps. These steps took 840 ms by the clock.",
        "After 30 steps (1.24 s) it went from asp to local_sgd:4, because the schedule changes at step 30. A step then "
        "took 40 ms, until the end. These steps took 400 ms by the clock.",
    ]
    assert closing_sentences(explanation) == [
        "In all it took 1.64 s and sent 5 kB: 3 kB in collectives and 2 kB between workers and servers."
    ]


def test_it_is_held_against_a_measured_bsp_and_called_by_no_other_name(switch_run: MakeRun, make_run: MakeRun):
    bsp = make_run("bsp", 0, wall_s=3.28, bytes_sent_total=10_000)
    explanation = explanation_of(THREE_STAGES, switch_run(), bsp=bsp)
    table = measured_table(explanation)
    assert table is not None
    assert table.rows[-2:] == [("the whole run", "1.64 s", "3.28 s", "0.50x"), ("bytes sent", "5 kB", "10 kB", "0.50x")]
    assert "adaptive" not in render_explanation_page(explanation)


def test_a_lost_worker_slows_no_step(switch_run: MakeRun):
    log = log_of(
        *BEGUN,
        *arrivals(0, after=10, num_steps=20),
        *arrivals(1, after=10, num_steps=4),
        Left(worker=1, reason=LeaveReason.LOST),
        policy="switch:bsp/asp@10",
    )
    last = explanation_of(log, switch_run(policy="switch:bsp/asp@10", steps=44, times_s=(0.0, 0.4, 1.2))).chapters[-1]
    assert (last.end, last.steps_made) == (30, (20, 4))
    assert last.step_s == pytest.approx(0.04)


@pytest.mark.parametrize("log", [log_of(), log_of(*BEGUN)], ids=["never asked", "asked ahead"])
def test_a_run_that_ended_before_its_first_change_says_when_that_would_have_been(log: EventLog, switch_run: MakeRun):
    explanation = explanation_of(log, switch_run(steps=18))
    assert explanation_sentences(explanation) == [
        "Nothing changed: all 9 steps ran under bsp, because the schedule first changes at step 10."
    ]


def test_a_run_without_a_step_has_nothing_to_tell(switch_run: MakeRun):
    explanation = explanation_of(log_of(), switch_run(steps=0, losses=(), status="failed", error="worker 1 was lost"))
    assert explanation_sentences(explanation) == ["No step was finished, so there is nothing to tell."]
    assert explanation_charts(explanation) == []
    render_explanation_page(explanation)


def test_without_losses_nobody_knows_when_a_stage_ended(switch_run: MakeRun):
    with pytest.raises(DataError, match=r"seed 0, recorded no losses, and with them .* give session\.step the loss"):
        explanation_of(THREE_STAGES, switch_run(losses=()))


def test_the_figures_draw_the_stages(explanation: Explanation):
    slack, step_time, loss = explanation_charts(explanation)
    assert [figure.slug for figure in (slack, step_time, loss)] == ["slack", "step-time", "loss"]
    assert slack.title == "The slack was 1 step for 50 % of the run"
    assert step_time.title == "A step took 40 ms under bsp, 60 ms under asp and 40 ms under local_sgd:4"
    drawn = draw_figure(slack)
    [in_force, *changes] = drawn.data
    assert list(in_force.x) == [0, 10, 10, 30, 30, 40]
    assert [list(change.x) for change in changes] == [[10], [30]]
    assert list(drawn.layout.yaxis.ticktext) == ["0", "1", "3"]
    [measured] = draw_figure(step_time).data
    assert list(measured.y) == pytest.approx([40, 40, 60, 60, 40, 40])
    assert measured.name == "measured"


def test_a_explanation_is_json(explanation: Explanation):
    data = json.loads(json.dumps(to_values(explanation), allow_nan=False))
    assert [chapter["bsp_step_s"] for chapter in data["chapters"]] == [None] * 3
    assert data["chapters"][1]["steps_made"] == [20, 8]


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_in_a_browser_has_room_for_every_label(browser: Browser, tmp_path: Path, explanation: Explanation):
    path = tmp_path / "explain.html"
    path.write_text(render_explanation_page(explanation), encoding="utf-8")
    for width in (400, 1280):
        with opened(browser, width=width) as page:
            load(page, path)
            check_figures(page, width=width)


STEP_S = (0.02, 0.02, 0.06)


def train(policy: str, folder: Path) -> None:
    """Three virtual workers, the last of which is three times slower."""

    def work(job: VirtualJob) -> None:
        rank = job.place.rank
        model = perceptron(4, 6)
        pacer = Pacer(step_time=Constant(mean_s=STEP_S[rank]), seed=0, worker=rank, clock=job.clock)
        optimizer = SGD(model.parameters(), lr=0.05)
        info = RunInfo(task="tanh")
        options = plesio.JoinOptions(pacer=pacer, info=info)
        with plesio.join(model, optimizer, policy=policy, trace=folder, options=options) as session:
            for _, x, y in session.shard(DataLoader(Problem(360, 4), batch_size=4, shuffle=True), samples=360):
                loss = (model(x) - y).square().mean()
                loss.backward()
                session.step(loss)

    simulate(work, num_workers=len(STEP_S), cluster=Cluster.one_host(len(STEP_S))).values()


def test_of_a_virtual_run_every_step_is_told_and_takes_what_it_takes(tmp_path: Path):
    """On a collective all wait for the slowest; on the store two of three make a step in a third of that time."""
    train("switch:local_sgd:4,delay=2/asp@8/bsp@20", tmp_path)
    [run] = read_results(tmp_path / "results.json")
    explanation = explanation_of(read_log(tmp_path / "events.jsonl"), run)
    averaged, free, together = explanation.chapters
    assert [one.policy for one in explanation.chapters] == ["local_sgd:4,delay=2", "asp", "bsp"]
    assert averaged.end == 8
    assert 20 <= free.end <= 21
    assert sum(free.steps_made) + 3 * (averaged.num_steps + together.num_steps) == run.steps
    # the furthest worker's stop divides them, and the slowest is then in the middle of a step, one of ten here
    assert together.step_s == pytest.approx(0.06, rel=0.1)
    per_s = sum(1 / step_s for step_s in STEP_S)
    assert free.step_s == pytest.approx(len(STEP_S) / per_s, rel=0.15)
    assert [one.end_s for one in explanation.chapters][-1] == pytest.approx(run.wall_s)
    assert 0 < explanation.server_bytes < explanation.outcome.bytes_sent


def test_the_command_explains_the_folder_of_such_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train("switch:bsp/ssp:2@5/bsp@12", tmp_path)
    assert invoke(["report", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "tanh under switch:bsp/ssp:2@5/bsp@12, seed 0, 3 workers in the virtual world: 2 changes in" in text
    assert "it went from bsp to ssp:2, because the schedule changes at step 5." in text
    assert "it went from ssp:2 to bsp, because the schedule changes at step 12." in text
    assert "in collectives and" in text
    story, _, advice = text.partition("The p99 of a step")
    assert "adaptive" not in story
    assert "worker 2 takes 3.0 times as long as the median worker" in advice
