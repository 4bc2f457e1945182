"""Adaptive runs in racks: held against training written out by hand, and what they choose, take and send."""

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.step_time import Constant, LogNormal, StepTime
from plesio.policies import Hierarchical, Policy, Reviewed, Steer, parse_policy, read_log, verify
from plesio.policies.adaptive.system.setting import Sent
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation
from support import noted_training
from support.by_hand import ByHand, flat_of
from support.decisions import Decision, script, to
from support.noted_training import NUM_FEATURES, Worker, build, train
from support.problems import Problem
from support.processes import on_processes
from support.workers import cluster_of_racks, pretend_hosts, workers_of

NUM_SAMPLES = 240
TOLERANCE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
"""float64, some hundred steps of a contraction."""
STEP = Constant(mean_s=0.02)


def cluster(sizes: Sequence[int], *, uplink_bytes_per_s: float = 2e6, nic_bytes_per_s: float = 1e9) -> Cluster:
    return cluster_of_racks(
        sizes,
        nic=Link(latency_s=20e-6, bytes_per_s=nic_bytes_per_s),
        uplink=Link(latency_s=100e-6, bytes_per_s=uplink_bytes_per_s),
    )


def run(
    policy: str,
    *,
    sizes: Sequence[int] = (2, 2),
    steps: StepTime | Sequence[StepTime] = STEP,
    links: Mapping[str, float] | None = None,
    epochs: int = 8,
    **options: Any,
) -> Simulation[Worker]:
    """Train on virtual workers in racks of these sizes."""
    place = cluster(sizes, **(links or {}))
    options |= {"num_samples": NUM_SAMPLES, "epochs": epochs}
    return noted_training.run(policy, step_time=steps, cluster=place, num_workers=sum(sizes), **options)


def racks(period: int, delay: int = 0, **flags: Any) -> Decision:
    return to(period, delay, by_racks=True, **flags)


# Held against training by hand


def by_hand(workers: Sequence[Worker], result: RunResult, *, sizes: Sequence[int]) -> Tensor:
    """Train on the batches that the workers saw, with the changes that the result tells of."""
    changes = {one["clock"]: (one["policy"], one["shares"]) for one in result.decisions}
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    hand = ByHand(parse_policy(result.decisions[0]["before"]), build, sizes=sizes, data=data)
    return flat_of(hand.train(workers, changes=changes))


UNEQUAL = (0.4, 0.1, 0.25, 0.25)
"""Samples of four workers; their racks have as many."""
LOPSIDED = (0.4, 0.3, 0.2, 0.1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("sizes", "decisions"),
    [
        pytest.param((2, 2), [racks(4), to(1)], id="there and back", marks=pytest.mark.slow),
        pytest.param((2, 2), [racks(8, 4), racks(2, 1), to(1), racks(4, 2)], id="with delays"),
        pytest.param((2, 2), [to(4, 2), racks(4), to(2), racks(2), to(1)], id="by workers and by racks"),
        pytest.param((3, 2), [racks(4, 2), to(4), racks(2), to(1)], id="racks of different sizes"),
        pytest.param(
            (2, 2),
            [racks(4, shares=UNEQUAL), to(1, shares=UNEQUAL)],
            id="shares within a rack",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (2, 2),
            [racks(4, 2, shares=LOPSIDED), racks(4, shares=UNEQUAL), to(4, shares=LOPSIDED), racks(2)],
            id="shares between racks",
        ),
    ],
)
def test_a_run_that_changes_is_the_one_written_out_by_hand(
    sizes: Sequence[int], decisions: list[Decision], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, *decisions)
    simulation = run("adaptive", sizes=sizes)
    workers, [result] = workers_of(simulation), simulation.runs
    assert [one["policy"] for one in result.decisions] == [decision.setting.spec for decision in decisions]
    torch.testing.assert_close(workers[0].final, by_hand(workers, result, sizes=sizes), **TOLERANCE)
    changes = [one["clock"] for one in result.decisions if one["policy"] != one["before"]]
    for worker in workers:
        assert [transition.clock for transition in worker.transitions] == changes


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2)], ids=str)
def test_a_run_that_rounds_between_racks_for_a_while_is_near_to_the_one_that_does_not(
    sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a way through every kind of change; the error of rounding is at most a 127th of the largest delta of each."""
    script(
        monkeypatch,
        racks(4, sent=Sent.ROUNDED),
        racks(2),
        racks(2, sent=Sent.ROUNDED),
        to(1),
        racks(8, sent=Sent.ROUNDED),
    )
    simulation = run("adaptive", sizes=sizes)
    workers, [result] = workers_of(simulation), simulation.runs
    assert [parse_policy(one["policy"]).compression.spec for one in result.decisions] == [
        "qsgd:8", "none", "qsgd:8", "none", "qsgd:8",
    ]  # fmt: skip
    expected = by_hand(workers, result, sizes=sizes)
    torch.testing.assert_close(workers[0].final, expected, rtol=0, atol=2e-2)
    assert not bool((workers[0].final == expected).any()), "all was rounded"
    for worker in workers[1:]:
        assert torch.equal(worker.final, workers[0].final)


def test_back_to_the_last_good_state_from_steps_by_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, racks(4, 2, keep=True), racks(4, 2), to(1, restore=True), to(1))
    simulation = run("adaptive")
    [result] = simulation.runs
    assert [(one["policy"], one["restore"]) for one in result.decisions][-1] == ("bsp", True)
    workers = workers_of(simulation)
    assert workers[0].transitions[-1].restored
    for worker in workers[1:]:
        assert torch.equal(worker.final, workers[0].final)


# What it chooses, what that takes, and what crosses racks

LARGE = {"hidden": 2048, "dtype": torch.float32, "on_loss": lambda session, optimizer, loss: loss / 200}
"""A model of 57 kB, 43 ms of a ring over an uplink of 2 MB/s and 0.1 ms within a rack, with a rate that it bears."""

IN_FULL = "adaptive,store=off,compress=off"


def last_policy(simulation: Simulation[Worker]) -> Policy:
    return parse_policy(simulation.runs[0].decisions[-1]["policy"])


def test_with_a_slow_uplink_it_goes_by_racks_a_step_takes_what_was_predicted_and_less_crosses_racks(
    tmp_path: Path,
) -> None:
    steps = [LogNormal(mean_s=0.02, cv=0.1)] * 4
    simulation = run("adaptive,compress=off", steps=steps, epochs=24, trace=tmp_path, **LARGE)
    [result] = simulation.runs
    policy = last_policy(simulation)
    assert isinstance(policy, Hierarchical)
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    assert {entry.event.rack for entry in log.entries if isinstance(entry.event, Reviewed)} == {0, 1}
    steers = [action for entry in log.entries for action in entry.actions if isinstance(action, Steer)]
    last = next(steer for steer in steers if parse_policy(steer.policy) == policy)
    predicted_s = statistics.fmean(
        dict(steer.inputs)[f"{policy.spec}.step_s"] for steer in steers if steer.clock > last.clock
    )
    at_s = {point.clock: point.at_s for point in result.losses}
    begin, end = min(clock for clock in at_s if clock > last.clock), max(at_s)
    assert (at_s[end] - at_s[begin]) / (end - begin) == pytest.approx(predicted_s, rel=0.03)
    [bsp] = run("bsp", steps=steps, epochs=24, **LARGE).runs
    assert result.bytes_sent_cross_rack < 0.27 * bsp.bytes_sent_cross_rack


def test_where_a_loss_leaves_one_rack_or_racks_of_one_worker_it_goes_on_without_racks() -> None:
    """Racks of two and one do so, whichever worker is lost."""
    for lost in (0, 2):
        [result] = run(IN_FULL, sizes=(2, 1), faults=[Fault(at_s=2.4, worker=lost, kind="lose")], **LARGE).runs
        assert [one["policy"].startswith("hier") for one in result.decisions[-2:]] == [True, False]
        assert (result.status, result.error, result.lost_workers) == ("finished", None, (lost,))


def test_where_a_loss_leaves_no_racks_shares_are_weighed_as_under_bsp() -> None:
    """Two are lost while racks of two step together, one after the other, and the rest have unequal paces."""
    steps = [Constant(mean_s=mean_s) for mean_s in (0.02, 0.02, 0.02, 0.06)]
    faults = [Fault(at_s=at_s, worker=lost, kind="lose") for at_s, lost in ((1.857, 0), (1.861, 1))]
    [result] = run(IN_FULL, steps=steps, faults=faults, **LARGE).runs
    assert result.decisions[-2]["policy"].startswith("hier")
    assert (result.status, result.error, result.lost_workers) == ("finished", None, (0, 1))


VERY_SLOW = {"uplink_bytes_per_s": 1e5}
"""An exchange between racks lasts half a second, 25 steps: what slack training may have does not hide it."""


def test_on_a_very_slow_uplink_it_rounds_between_racks_and_the_log_replays(tmp_path: Path) -> None:
    rounded, full = (
        run(f"adaptive{rest}", links=VERY_SLOW, trace=tmp_path / name, **LARGE)
        for name, rest in (("rounded", ""), ("full", ",compress=off"))
    )
    assert re.fullmatch(r"hier:bsp/local_sgd:\d+,compress=qsgd:8", last_policy(rounded).spec)
    assert re.fullmatch(r"hier:bsp/local_sgd:\d+", last_policy(full).spec)
    assert verify(read_log(tmp_path / "rounded" / "events.jsonl")) is None
    assert rounded.runs[0].wall_s < 0.6 * full.runs[0].wall_s


@pytest.mark.one_in(2)
@pytest.mark.parametrize("links", [{"uplink_bytes_per_s": 1e9}, {"uplink_bytes_per_s": 2e6, "nic_bytes_per_s": 2e6}])
def test_with_equal_links_it_does_not(links: Mapping[str, float]) -> None:
    """In the second case every way is slow: within a rack it takes half as long, and single workers hide all of it."""
    assert not isinstance(last_policy(run("adaptive", links=links, **LARGE)), Hierarchical)


def test_left_out_or_with_a_worker_a_rack_nobody_steps_by_racks() -> None:
    for policy, sizes in (("adaptive,racks=off", (2, 2)), ("adaptive", (1, 1, 1, 1))):
        decisions = run(policy, sizes=sizes, **LARGE).runs[0].decisions
        assert {one["policy"].partition(":")[0] for one in decisions} <= {"bsp", "bsp,compress=qsgd", "local_sgd"}
        assert not any(name.startswith("hier") for one in decisions for name in one["inputs"])


# Real processes


WAY = [racks(8, 4), to(4, 2), racks(4), to(1), racks(2, 1)]


def pretend_two_hosts() -> dict[str, Any]:
    """This file's program on a process, half of whose job is on another host: what it saw and made, as plain values."""
    rank = pretend_hosts(2)
    pacer = Pacer(step_time=Constant(mean_s=0.002), seed=5, worker=rank)
    with pytest.MonkeyPatch.context() as monkeypatch:
        script(monkeypatch, *WAY)
        saw = train("adaptive,guard=off", pacer=pacer, num_samples=NUM_SAMPLES, epochs=12)
    assert saw.result is not None
    return {"batches": saw.batches, "parameters": saw.final.tolist(), "result": saw.result.to_json()}


@pytest.mark.slow
def test_on_processes_a_run_by_racks_is_the_one_written_out_by_hand() -> None:
    """DDP in the racks, Gloo between them."""
    found = on_processes(4, __file__, "pretend_two_hosts")
    result = RunResult.from_json(found[0]["result"])
    assert [one["policy"] for one in result.decisions] == [decision.setting.spec for decision in WAY]
    workers = [Worker(batches=one["batches"]) for one in found]
    expected = by_hand(workers, result, sizes=(2, 2))
    mine = torch.tensor(found[0]["parameters"], dtype=torch.float64)
    torch.testing.assert_close(mine, expected, **TOLERANCE)
