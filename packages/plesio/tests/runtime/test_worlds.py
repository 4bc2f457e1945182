"""The catalogue: every policy x exchange x number of servers, on real processes, against single-process PyTorch."""

import itertools
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.core.results import RunResult, read_results
from plesio.core.trace import read_trace
from plesio.policies import parse_policy, read_log, verify
from runtime import programs
from support.processes import on_processes

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
LIMIT_S = 120.0
NUM_WORKERS = 2
EPOCHS = 2


@dataclass(frozen=True)
class Case:
    policy: str
    servers: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        extras = [key if value is True else f"{key}={value}" for key, value in self.options.items()]
        return "+".join([self.policy, *([f"{self.servers} servers"] if self.servers else []), *extras])

    @property
    def shape(self) -> dict[str, Any]:
        """The options that say what is built."""
        of_build = ("optimizer", "groups", "batch_norm", "frozen", "unused")
        return {key: value for key, value in self.options.items() if key in of_build}


# Orders of the number of servers alternate on purpose: a server that sat a run out must take part in the next.
SYNCHRONOUS = [
    Case("bsp"),
    Case("bsp,exchange=store", servers=1),
    Case("bsp,exchange=store", servers=2),
    Case("ssp:0", servers=1),
    Case("local_sgd:1"),
    Case("local_sgd:4"),
    Case("local_sgd:4,delay=2"),
    Case("local_sgd:4,delay=4"),
    Case("local_sgd:5", options={"num_samples": 90}),
    Case("local_sgd:4,exchange=store", servers=1),
    Case("local_sgd:5,exchange=store", servers=2, options={"num_samples": 90}),
    Case("bsp", options={"num_samples": 90}),
    Case("bsp,exchange=store", servers=1, options={"num_samples": 90}),
    Case("bsp", options={"optimizer": "AdamW"}),
    Case("bsp,exchange=store", servers=2, options={"optimizer": "AdamW"}),
    Case("bsp", options={"groups": True, "scheduled": True}),
    Case("bsp,exchange=store", servers=2, options={"groups": True, "scheduled": True}),
    Case("local_sgd:4,exchange=store", servers=2, options={"groups": True, "scheduled": True}),
    Case("bsp", options={"accumulate": 2}),
    Case("bsp,exchange=store", servers=1, options={"accumulate": 2}),
    Case("bsp", options={"frozen": True, "loader_workers": 1}),
    Case("bsp,exchange=store", servers=2, options={"frozen": True, "unused": True, "loader_workers": 1}),
    Case("local_sgd:4", options={"frozen": True, "unused": True}),
    Case("bsp", options={"evaluate": True}),
    Case("bsp,exchange=store", servers=1, options={"evaluate": True}),
    Case("local_sgd:4", options={"evaluate": True}),
]
ASYNCHRONOUS = [
    Case("asp", servers=1),
    Case("asp", servers=2),
    Case("ssp:2", servers=1),
    Case("ssp:2", servers=2, options={"num_samples": 90}),
    Case("ssp:4,update=delta", servers=1),
    Case("ssp:4,update=delta", servers=2),
    Case("asp,weight=inverse", servers=1, options={"evaluate": True}),
    Case("asp", servers=2, options={"groups": True, "scheduled": True, "clip": 0.5}),
    Case("asp", servers=1, options={"batch_norm": True, "frozen": True, "unused": True, "loader_workers": 1}),
    Case("ssp:4,period=3", servers=1, options={"pace_s": {0: 0.001, 1: 0.01}}),
    Case("asp,compress=topk:0.1", servers=2, options={"batch_norm": True}),
    Case("ssp:4,period=2,compress=qsgd:8", servers=1),
]
BATCH_NORM = [
    Case("local_sgd:4", options={"batch_norm": True}),
    Case("local_sgd:4,exchange=store", servers=2, options={"batch_norm": True}),
    Case("bsp", options={"batch_norm": True}),
]
LIKE_BSP = [
    Case("switch:bsp/ssp:0@4/bsp@9", servers=2, options={"groups": True, "scheduled": True}),
    Case("switch:ssp:0/bsp@5", servers=2, options={"optimizer": "AdamW", "num_samples": 90}),
    Case("switch:bsp/ssp:0@3", servers=1, options={"accumulate": 2}),
    Case("switch:bsp/ssp:0@3/bsp@8", servers=2, options={"frozen": True, "loader_workers": 1}),
]
CHANGING = [
    *LIKE_BSP,
    Case("switch:bsp/asp@4/local_sgd:2@9/ssp:2@13", servers=2, options={"frozen": True, "num_samples": 90}),
]
CATALOGUE = [*SYNCHRONOUS, *ASYNCHRONOUS, *BATCH_NORM, *CHANGING]
BY_NAME = {
    "every step": "ssp:0+1 servers",
    "every third": "ssp:4,period=3+1 servers+pace_s={0: 0.001, 1: 0.01}",
    "scheduled": "bsp,exchange=store+2 servers+groups+scheduled",
}
"""Cases that tests ask for one by one."""
QUICK = {
    *BY_NAME.values(),
    *(case.name for cases in (SYNCHRONOUS, ASYNCHRONOUS, BATCH_NORM, CHANGING) for case in cases[::2]),
}
"""The others are slow; a policy of each kind is here, with each number of servers and each option."""


@dataclass(frozen=True)
class Run:
    case: Case
    folder: Path
    workers: list[dict[str, Any]]

    @property
    def result(self) -> RunResult:
        [result] = read_results(self.folder / "results.json")
        return result

    def seen(self, epoch: int) -> list[int]:
        return sorted(index for worker in self.workers for index in worker["seen"][epoch])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Run]:
    """Run all requested cases of the catalogue in one job: the workers and servers stay, as in a comparison."""
    folder = tmp_path_factory.mktemp("catalogue")
    asked = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    }
    cases = [case for case in CATALOGUE if case.name in asked | {*BY_NAME.values()}]
    plans = [
        {
            "policy": case.policy,
            "epochs": EPOCHS,
            "trace": folder / str(number),
            "num_servers": case.servers,
            **case.options,
        }
        for number, case in enumerate(cases)
    ]
    by_rank = on_processes(NUM_WORKERS, PROGRAMS, "several_runs", runs=plans, limit_s=LIMIT_S)
    return {
        case.name: Run(case, folder / str(number), [worker[number] for worker in by_rank])
        for number, case in enumerate(cases)
    }


def each(cases: list[Case]) -> Callable[..., Any]:
    return pytest.mark.parametrize(
        "name", [pytest.param(case.name, marks=[pytest.mark.slow] * (case.name not in QUICK)) for case in cases]
    )


State = dict[str, torch.Tensor]


def reference(run: Run) -> State:
    """The same data in the same order through stock PyTorch in this process: N replicas and a plain average."""
    case = run.case
    policy = parse_policy("bsp" if case in LIKE_BSP else case.policy)
    shape = case.shape
    data = programs.Numbered()
    model, _ = programs.build(0, **shape)
    replicas = []
    for rank in range(NUM_WORKERS):
        replica, optimizer = programs.build(rank, **shape)
        replica.load_state_dict(model.state_dict())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.8)
        replicas.append((replica, optimizer, scheduler))
    models = [replica for replica, _, _ in replicas]
    started: dict[int, list[State]] = {}
    num_steps = len(run.workers[0]["batches"])
    clock = 0
    for step in range(num_steps):
        for rank, replica in enumerate(models):
            batch = torch.tensor(run.workers[rank]["batches"][step])
            programs.loss_of(replica, (batch, data.x[batch], data.y[batch])).backward()
        if policy.update == "gradient":
            average_gradients(models)
        for _, optimizer, scheduler in replicas:
            optimizer.step()
            optimizer.zero_grad()
            if case.options.get("scheduled"):
                scheduler.step()
        if policy.update == "delta":
            clock += 1
            merged = policy.merges_at(clock)
            if merged is not None and merged < clock:
                add_correction(models, started.pop(merged))
            if policy.exchanges_at(clock):
                started[clock] = [deepcopy(replica.state_dict()) for replica in models]
                if merged == clock:
                    add_correction(models, started.pop(clock))
            if policy.exchange == "store" and (step + 1) % (num_steps // EPOCHS) == 0:
                # with no samples left a worker of the store hands in what it holds back, and the round ends early
                add_correction(models, [deepcopy(replica.state_dict()) for replica in models])
                clock = -(-clock // policy.period) * policy.period
    for clock in sorted(started):
        add_correction(models, started.pop(clock))
    add_correction(models, [deepcopy(replica.state_dict()) for replica in models])
    return models[0].state_dict()


@torch.no_grad()
def average_gradients(models: list[Any]) -> None:
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        grads = [p.grad for p in parameters if p.grad is not None]
        if grads:
            mean = torch.stack(grads).mean(0)
            for p in parameters:
                p.grad = mean.clone()


@torch.no_grad()
def add_correction(models: list[Any], started: list[State]) -> None:
    """Add the change that a plain average of the states would make to the states."""
    for name in started[0]:
        mean = torch.stack([state[name] for state in started]).mean(0)
        for model, state in zip(models, started, strict=True):
            model.state_dict()[name].add_(mean - state[name])


def final_state(run: Run) -> State:
    return {name: torch.tensor(tensor) for name, tensor in run.workers[0]["state"].items()}


@each([*SYNCHRONOUS, *LIKE_BSP])
def test_synchronous_policy_trains_what_one_process_would(runs: dict[str, Run], name: str):
    run = runs[name]
    torch.testing.assert_close(final_state(run), reference(run), rtol=1e-5, atol=1e-6)


@each(CATALOGUE)
def test_every_sample_is_visited_once_an_epoch_and_the_budget_is_met(runs: dict[str, Run], name: str):
    run = runs[name]
    num_samples = run.case.options.get("num_samples", programs.NUM_SAMPLES)
    for epoch in range(EPOCHS):
        assert run.seen(epoch) == list(range(num_samples))
    result = run.result
    assert result.samples == EPOCHS * num_samples
    assert sum(times.samples for times in result.workers) == result.samples
    assert sum(times.steps for times in result.workers) == result.steps


@each(CATALOGUE)
def test_all_start_from_rank_zero_and_rank_zero_has_the_shared_parameters(runs: dict[str, Run], name: str):
    run = runs[name]
    starts = {worker["start"] for worker in run.workers}
    assert programs.digest(programs.build(0, **run.case.shape)[0]) in starts
    # where nobody waits, a worker may begin with what another one has made of them already
    assert len(starts) == 1 or not parse_policy(run.case.policy).synchronous
    assert run.result.parameters_sha256 is not None
    if run.case.policy == "bsp":
        assert len({worker["digest"] for worker in run.workers}) == 1


@each(CATALOGUE)
def test_training_helps_and_the_books_are_right(runs: dict[str, Run], name: str):
    run, policy = runs[name], parse_policy(runs[name].case.policy)
    result = run.result
    assert result.status == "finished"
    assert result.error is None
    assert result.policy == policy.spec
    untrained = programs.whole_loss(programs.build(0)[0])
    assert run.workers[0]["loss"] < (0.9 if "clip" in run.case.options else 0.7) * untrained
    assert all(math.isfinite(point.loss) for point in result.losses)
    assert 0 < len(result.losses) <= result.steps
    assert result.bytes_sent_total == sum(result.bytes_sent.values()) > 0
    assert result.lost_workers == ()
    assert result.refused_updates == {}
    assert result.max_lead <= policy.bound
    assert result.wall_s > 0
    for times in result.workers:
        assert 0 < times.compute_s <= 1.01 * result.wall_s
        assert times.communicate_s > 0
        assert times.wait_s >= 0
    assert result == RunResult.from_json(run.workers[0]["result"])


@each([case for case in CATALOGUE if parse_policy(case.policy).pushes])
def test_recorded_events_replay_to_the_same_actions(runs: dict[str, Run], name: str):
    run = runs[name]
    log = read_log(run.folder / "events.jsonl")
    assert verify(log) is None
    applied = sum(
        len(action.updates) for entry in log.entries for action in entry.actions if hasattr(action, "updates")
    )
    assert sum(run.result.staleness.counts) == applied > 0


@each(CATALOGUE)
def test_traces_hold_every_step_and_every_exchange(runs: dict[str, Run], name: str):
    run = runs[name]
    for rank, worker in enumerate(run.workers):
        trace = read_trace(run.folder / f"trace-{rank}.jsonl")
        assert trace.header["worker"] == rank
        spans = [record for record in trace.records if record.kind == "compute"]
        # a paced step is two: the gradient, and the rest of its time
        assert len(spans) == len(worker["batches"]) * (2 if "pace_s" in run.case.options else 1)
        assert all(record.duration_s is not None and record.duration_s >= 0 for record in spans)
        pieces = sorted(
            (record.at_s, record.duration_s, record.kind)
            for record in trace.records
            if record.duration_s is not None and record.kind != "evaluate"
        )
        overlaps = [
            (first, second)
            for first, second in itertools.pairwise(pieces)
            if first[0] + first[1] > second[0] + 2e-6  # two roundings to a microsecond
        ]
        assert not overlaps, "time counted twice"
        pushes = [record for record in trace.records if record.kind == "push"]
        assert bool(pushes) == (parse_policy(run.case.policy).pushes is not None)


@each([case for case in CATALOGUE if case.options.get("evaluate")])
def test_evaluation_is_of_the_shared_parameters(runs: dict[str, Run], name: str):
    run = runs[name]
    own = run.workers[0]["metrics"]
    assert len(own) == EPOCHS
    assert own[1] < own[0]
    assert [point.metric for point in run.result.evaluations] == pytest.approx(own)
    collective = parse_policy(run.case.policy).exchange == "collective"
    assert run.workers[1]["metrics"] == (pytest.approx(own) if collective else [None] * EPOCHS)
    if parse_policy(run.case.policy).synchronous:
        assert own[-1] == pytest.approx(run.workers[0]["loss"], rel=1e-5)


@each([case for case in CATALOGUE if case.options.get("frozen") or case.options.get("unused")])
def test_what_is_not_trained_stays_as_it_was(runs: dict[str, Run], name: str):
    state = final_state(runs[name])
    if runs[name].case.options.get("frozen"):
        assert state["scale"].tolist() == [1.5]
    if runs[name].case.options.get("unused"):
        assert state["spare"].tolist() == [2.5] * 3


@each([case for case in CATALOGUE if case.options.get("batch_norm")])
def test_batch_norm_statistics_are_shared(runs: dict[str, Run], name: str):
    state = final_state(runs[name])
    assert bool((state["norm.running_var"] - 1).abs().gt(1e-3).all())
    assert int(state["norm.num_batches_tracked"]) > 0


def test_a_longer_period_sends_less(runs: dict[str, Run]):
    every_step = runs[BY_NAME["every step"]].result.bytes_sent_total
    every_third = runs[BY_NAME["every third"]].result.bytes_sent_total
    assert every_third < 0.75 * every_step


def test_fast_worker_takes_more_under_a_relaxed_policy(runs: dict[str, Run]):
    fast, slow = runs[BY_NAME["every third"]].result.workers
    assert fast.samples >= slow.samples


def test_learning_rates_of_the_scheduler_are_the_workers_own(runs: dict[str, Run]):
    run = runs[BY_NAME["scheduled"]]
    steps = len(run.workers[0]["batches"])
    assert run.workers[0]["rates"] == pytest.approx([0.02 * 0.8 ** (steps // 3), 0.05 * 0.8 ** (steps // 3)])
