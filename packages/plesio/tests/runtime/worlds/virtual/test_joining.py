"""Workers join a collective that is running: nothing is done twice, each sample counts once, replicas stay equal."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import TransportError
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.link_changes import LinkChange
from plesio.policies import Reviewed, parse_policy, read_log, verify
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support import counted_training
from support.counted_training import BATCH_SIZE, NUM_SAMPLES, Worker, join, lose, pacer_of
from support.problems import Problem, perceptron
from support.workers import workers_of

NUM_WORKERS, LOOPS = 3, 4
COLLECTIVE = [
    "bsp",
    "bsp,compress=topk:0.2",
    "delayed:2",
    "local_sgd:8",
    "local_sgd:4,delay=2",
    "local_sgd:4,compress=qsgd:8",
    "local_sgd:3,inner_rate=0.5,momentum=0.5",
    "diloco:4",
    "diloco:4,fragments=2,delay=1",
]
CHANGING = [
    "adaptive",
    "switch:bsp/local_sgd:4@8/bsp@14",
    "switch:bsp/asp@6",
    "switch:bsp/asp@5/bsp@20",
    "switch:local_sgd:4/ssp:2@9/bsp@24",
]


run = partial(counted_training.run, num_workers=NUM_WORKERS, loops=LOOPS)


def ends_in_collective(result: RunResult) -> bool:
    """Return True if the last stage is one; on the store each worker keeps the parameters of its last step."""
    policy = result.decisions[-1]["policy"] if result.decisions else parse_policy(result.policy).first.spec
    return parse_policy(policy).exchange == "collective"


def assert_went_on(simulation: Simulation[Worker], *, lost: Sequence[int] = (), joined: int = 1) -> RunResult:
    for outcome in simulation.outcomes.values():
        if outcome.error is not None:
            raise outcome.error
    [result] = simulation.runs
    assert (result.status, result.error) == ("finished", None)
    known = {worker for worker in lost if worker < NUM_WORKERS}  # another may have gone before it was let in
    assert known <= set(result.lost_workers) <= set(lost)
    rest = [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]
    assert len(simulation.outcomes) == NUM_WORKERS + joined
    assert len(rest) == NUM_WORKERS + joined - len(lost)
    if ends_in_collective(result):
        assert all(worker.parameters == rest[0].parameters for worker in rest), "replicas differ"
    assert torch.isfinite(torch.tensor([x for p in rest[0].parameters for x in p])).all()
    left_out = [int(line.split()[0]) for line in result.fallbacks if "were left out" in line]
    assert result.samples + sum(left_out) == LOOPS * NUM_SAMPLES
    return result


def assert_nothing_was_done_twice(simulation: Simulation[Worker]) -> None:
    workers = [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]
    for loop in range(LOOPS):
        seen = Counter(number for worker in workers for number in worker.counted[loop])
        assert set(seen) == set(range(NUM_SAMPLES)), "a sample was left out"
        assert set(seen.values()) == {1}, "a sample was trained on twice"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at_s", [0.0, pytest.param(0.13, marks=pytest.mark.slow), 0.25])
@pytest.mark.parametrize("policy", COLLECTIVE)
def test_a_worker_joins_and_nothing_is_done_twice(policy: str, at_s: float, tmp_path: Path) -> None:
    simulation = run(policy, join(at_s=at_s), trace=tmp_path)
    assert_went_on(simulation)
    assert_nothing_was_done_twice(simulation)
    workers = [simulation.outcomes[rank].value for rank in range(NUM_WORKERS + 1)]
    assert all(worker is not None and worker.cut_off == 0 for worker in workers)
    assert workers[-1].clock == workers[0].clock > workers[-1].began_at
    assert any(workers[-1].counted), "it had no share"
    assert len({worker.rate for worker in workers}) == 1, "learning rates differ"
    assert verify(read_log(tmp_path / "events.jsonl")) is None


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "at_s", [0.0, 0.13, 0.25, *(pytest.param(at_s, marks=pytest.mark.slow) for at_s in (0.08, 0.38))]
)
@pytest.mark.parametrize("policy", CHANGING)
def test_a_worker_joins_wherever_a_policy_that_changes_is(policy: str, at_s: float, tmp_path: Path) -> None:
    simulation = run(policy, join(at_s=at_s), trace=tmp_path)
    assert_went_on(simulation)
    newcomer = simulation.outcomes[NUM_WORKERS].value
    assert newcomer is not None
    assert any(newcomer.counted), "it had no share"
    assert verify(read_log(tmp_path / "events.jsonl")) is None


@pytest.mark.parametrize("faults", [[join(at_s=0.25)], [lose(1, at_s=0.25)]], ids=["joined", "lost"])
def test_what_forming_a_new_group_takes_is_no_steps(faults: list[Fault], tmp_path: Path) -> None:
    """It was told twice, so that the first review after it had a negative time of computing, and blocked steps."""
    plain, formed = tmp_path / "plain", tmp_path / "formed"
    run("adaptive", trace=plain)
    run("adaptive", *faults, trace=formed)
    usual, told = (
        [entry.event for entry in read_log(folder / "events.jsonl").entries if isinstance(entry.event, Reviewed)]
        for folder in (plain, formed)
    )
    assert min(min(review.compute_s) for review in told) >= 0.9 * min(min(review.compute_s) for review in usual)
    assert max(max(review.blocked_s) for review in told) <= 1.1 * max(max(review.blocked_s) for review in usual)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:8", "delayed:2", "adaptive", "switch:bsp/asp@6"])
@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "later_s", [0.0, *(pytest.param(later_s, marks=pytest.mark.slow) for later_s in (0.0004, 0.05)), 0.002]
)
def test_one_is_lost_while_another_joins(policy: str, lost: int, later_s: float) -> None:
    assert_went_on(run(policy, join(at_s=0.15), lose(lost, at_s=0.15 + later_s)), lost=[lost])


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:8", "adaptive"])
def test_a_lost_worker_is_replaced_and_several_join_at_once(policy: str) -> None:
    assert_went_on(run(policy, lose(1, at_s=0.15), join(at_s=0.2), join(at_s=0.2), join(at_s=0.21)), lost=[1], joined=3)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "switch:bsp/local_sgd:4@8"])
def test_metrics_of_loops_that_are_over_are_told(policy: str) -> None:
    simulation = run(policy, join(at_s=0.25), evaluates=True)
    assert_went_on(simulation)
    metrics = [outcome.value.metrics for outcome in simulation.outcomes.values() if outcome.value is not None]
    assert all(one == metrics[0] for one in metrics)
    assert len(metrics[0]) == LOOPS
    assert None not in metrics[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "ssp:2", "adaptive", "switch:bsp/asp@6"])
@pytest.mark.parametrize("at_s", [0.13, pytest.param(0.25, marks=pytest.mark.slow)])
def test_a_worker_joins_beside_checkpoints_and_saves_with_the_others(policy: str, at_s: float, tmp_path: Path) -> None:
    simulation = run(policy, join(at_s=at_s), checkpoint=tmp_path)
    assert_went_on(simulation)
    latest = max(tmp_path.glob("step-*/manifest.json"))
    assert '"workers":[0,1,2,3]' in latest.read_text().replace(" ", "").replace("\n", "")


@pytest.mark.parametrize("policy", ["hier:bsp/local_sgd:4", "adaptive"])
def test_one_joins_a_rack_that_there_is(policy: str) -> None:
    simulation = run(policy, join(at_s=0.15), racks=(2, 1))
    assert_went_on(simulation)


def test_racks_on_the_store_and_a_run_at_its_end_refuse_in_a_line() -> None:
    refused = run("hier:bsp/ssp:2", join(at_s=0.15), racks=(2, 1)).outcomes[NUM_WORKERS].error
    assert "no worker can join hier:bsp/ssp:2 while it runs" in str(refused)
    simulation = run("bsp", join(at_s=0.6))
    [result] = simulation.runs
    assert (result.status, result.samples, result.lost_workers) == ("finished", LOOPS * NUM_SAMPLES, ())


def test_nobody_joins_where_workers_form_no_new_group() -> None:
    def work(_job: VirtualJob) -> None:
        model = perceptron(5, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        options = plesio.JoinOptions(pacer=pacer_of(_job), elastic=False)
        with plesio.join(model, optimizer, policy="bsp", options=options) as session:
            for _, x, y in session.shard(DataLoader(Problem(NUM_SAMPLES, 5), batch_size=BATCH_SIZE, shuffle=True)):
                (model(x) - y).square().mean().backward()
                session.step()

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2), faults=[join(at_s=0.05)])
    assert isinstance(simulation.outcomes[2].error, TransportError)
    assert "its workers form no new group" in str(simulation.outcomes[2].error)
    assert simulation.runs[0].status == "finished"


def test_who_comes_when_the_run_is_over_leaves_its_records_alone(tmp_path: Path) -> None:
    lost = [lose(1, at_s=0.1554), lose(2, at_s=0.2513), lose(0, at_s=0.4371)]
    simulation = run("bsp", *lost, join(at_s=0.4443), trace=tmp_path)
    [result] = simulation.runs
    assert set(result.lost_workers) == {0, 1, 2}
    assert isinstance(simulation.outcomes[3].error, TransportError)
    log = read_log(tmp_path / "events.jsonl")
    assert log.entries
    assert verify(log) is None


FAULTS = st.lists(
    st.one_of(
        st.builds(lambda at_s: join(at_s=at_s), st.floats(0, 0.45)),
        st.builds(lambda worker, at_s: lose(worker, at_s=at_s), st.integers(0, 4), st.floats(0.05, 0.45)),
    ),
    max_size=5,
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(faults=[join(at_s=0.0), join(at_s=0.0), join(at_s=0.25), join(at_s=0.296875)], policy="delayed:2")
@example(faults=[lose(0, at_s=0.05)], policy="delayed:2")
@example(faults=[lose(1, at_s=0.22)], policy="switch:bsp/asp@5/bsp@20")
@example(  # cut off on the way to the store, with what is left of the samples in leases already
    faults=[join(at_s=0.0), join(at_s=0.21875), lose(0, at_s=0.125), lose(1, at_s=0.26087)], policy="switch:bsp/asp@6"
)
@example(  # who joins where another is lost goes to the store at once
    faults=[join(at_s=0.0789), lose(1, at_s=0.1128), join(at_s=0.268)], policy="switch:local_sgd:4,delay=2/ssp:2@6"
)
@example(  # cut off again while the exchange of the new group is built
    faults=[join(at_s=0.09), lose(2, at_s=0.1084)], policy="switch:local_sgd:4/ssp:2@9/bsp@16"
)
@example(  # nobody is left to be joined
    faults=[lose(1, at_s=0.1554), lose(2, at_s=0.2513), lose(0, at_s=0.4371), join(at_s=0.4443)], policy=CHANGING[1]
)
@example(faults=[join(at_s=0.0), join(at_s=0.0), join(at_s=0.4375)], policy="local_sgd:8")  # one comes at the end
@given(faults=FAULTS, policy=st.sampled_from(["bsp", "local_sgd:8", "delayed:2", "adaptive", *CHANGING[1:4]]))
def test_whoever_comes_and_goes_the_run_ends_and_each_sample_counts_once(policy: str, faults: list[Fault]) -> None:
    ordered = sorted(faults, key=lambda fault: fault.at_s)
    simulation = run(policy, *ordered)
    [result] = simulation.runs
    workers = [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]
    refused = [outcome.error for outcome in simulation.outcomes.values() if outcome.error is not None]
    assert all(isinstance(error, TransportError) for error in refused), refused
    if not workers:
        return
    assert (result.status, result.error) == ("finished", None)
    if ends_in_collective(result):
        assert all(worker.parameters == workers[0].parameters for worker in workers), "replicas differ"
    left_out = [int(line.split()[0]) for line in result.fallbacks if "were left out" in line]
    counted, lost = result.samples + sum(left_out), [fault for fault in faults if fault.kind == "lose"]
    if (
        policy in CHANGING
    ):  # what a worker had pushed last when it was lost on the store is in the parameters, if not here
        assert LOOPS * NUM_SAMPLES - BATCH_SIZE * len(lost) <= counted <= LOOPS * NUM_SAMPLES
    else:
        assert counted == LOOPS * NUM_SAMPLES


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["ssp:2", "asp", "switch:bsp/asp@6"])
def test_checkpoints_are_taken_after_a_loss_on_the_store(policy: str, tmp_path: Path) -> None:
    simulation = run(policy, lose(1, at_s=0.25), checkpoint=tmp_path)
    assert_went_on(simulation, lost=[1], joined=0)
    latest = max(tmp_path.glob("step-*/manifest.json"))
    assert '"workers":[0,2]' in latest.read_text().replace(" ", "").replace("\n", "")


def test_on_the_store_all_servers_fill_a_newcomer_at_once() -> None:
    """It is on the host of worker 0; the links of the others are thin, and each sends the part that its server has."""
    thin = tuple(LinkChange(at_s=0.0, link="nic", number=host, bytes_per_s=1e6) for host in (1, 2, 3))
    cluster = replace(
        Cluster.one_host(1), name="hosts", hosts=4, nic=Link(latency_s=5e-5, bytes_per_s=1e8), changes=thin
    )

    def fill_s(num_servers: int) -> float:
        def work(job: VirtualJob) -> float:
            model, came_s = torch.nn.Linear(250, 250), job.clock.now_s()
            options = plesio.JoinOptions(pacer=pacer_of(job), num_servers=num_servers)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            with plesio.join(model, optimizer, policy="diloco:40,exchange=store", options=options) as session:
                filled_s = job.clock.now_s() - came_s
                for (x,) in session.shard(DataLoader(TensorDataset(torch.randn(240, 250)))):
                    model(x).square().mean().backward()
                    session.step()
            return filled_s

        return workers_of(simulate(work, num_workers=4, cluster=cluster, faults=[join(at_s=0.9)]))[4]

    assert fill_s(2) == pytest.approx(2 * fill_s(4), rel=0.05)
