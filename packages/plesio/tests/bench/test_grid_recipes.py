"""Grids among a recipe's policies: what they train, what is refused, and that processes do the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.bench.assignment import Assignment
from plesio.bench.grid_trainer import optimizer_of_stage
from plesio.bench.recipe import make_recipe
from plesio.bench.virtual_pool import VirtualPool
from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError, TaskError
from plesio.core.results import RunResult, read_results

pytestmark = pytest.mark.timeout(240)

STEP_TIME = {"kind": "constant", "mean": "20 ms"}
TINY_LM = {"context": 16, "corpus_bytes": 100_000, "width": 16, "depth": 2, "num_heads": 2}


def table(*policies: str, count: int, task: str = "digits", samples: int = 640, **options: Any) -> dict[str, Any]:
    return {
        "task": {"name": task, "options": options},
        "run": {"policies": list(policies), "samples": samples, "evaluate_every": 320},
        "workers": {"count": count, "step_time": STEP_TIME},
    }


def trained(policy: str, **said: Any) -> RunResult:
    """The run of a recipe in the virtual world."""
    recipe = make_recipe(table(policy, **said), folder=Path(), where="")
    assignment = Assignment(policy=recipe.run.policies[0], seed=0, folder=None)
    done = VirtualPool(recipe).run(assignment, on_figures=lambda figures: None)
    assert done.problems == {}
    assert done.result is not None
    return RunResult.from_json(done.result)


@pytest.mark.parametrize(
    ("policy", "staleness", "first"),
    [
        ("grid:2x2", 2, 320),
        pytest.param("grid:1x4", 6, 320, marks=pytest.mark.slow),
        ("grid:4x1,mixing=ring", 0, 384),
        pytest.param("grid:1x4,schedule=1f1b,micro_batches=4", 0, 384, marks=pytest.mark.slow),
    ],
)
def test_trains_all_samples_and_evaluates_at_the_first_update_beyond(policy: str, staleness: int, first: int) -> None:
    result = trained(policy, count=4)
    assert (result.policy, result.task, result.world, result.num_workers) == (policy, "digits", "virtual", 4)
    assert (result.status, result.samples, result.staleness.max) == ("finished", 640, staleness)
    assert [evaluation.samples for evaluation in result.evaluations] == [first, 640]
    assert result.evaluations[-1].metric > 0.6
    stages = int(policy.partition("x")[2][0])
    late = [worker.staleness.max for worker in result.workers if worker.staleness is not None]
    assert late == [2 * (stages - 1 - rank % stages) if staleness else 0 for rank in range(4)]
    again = trained(policy, count=4)
    assert (again.parameters_sha256, again.virtual_s) == (result.parameters_sha256, result.virtual_s)


def test_a_stage_takes_its_share_of_the_step_time() -> None:
    """32 samples a micro-batch: 20 updates by one worker; a pipeline of 4 does a quarter of each in the same time."""
    alone = trained("grid:1x1", count=1)
    pipeline = trained("grid:1x4", count=4)
    assert alone.virtual_s == pytest.approx(20 * 0.02, rel=1e-3)
    assert pipeline.virtual_s == pytest.approx(20 * 0.005, rel=0.4)  # and what filling takes


@pytest.mark.parametrize(
    ("task", "options"),
    [
        pytest.param("digits", {}, marks=pytest.mark.slow),
        pytest.param("stdlib_lm", TINY_LM | {"tied": False}, marks=pytest.mark.slow),
        ("vision", {"model": "mlp"}),
    ],
)
def test_stages_have_the_optimizer_and_the_schedule_of_the_task(task: str, options: dict[str, Any]) -> None:
    """Without delay a cut network comes to what the whole one does, with groups of weights, momentum and warm-up."""
    whole = trained("grid:1x1", count=1, task=task, **options)
    cut = trained("grid:1x3,delay=0", count=3, task=task, **options)
    assert cut.parameters_sha256 == whole.parameters_sha256
    assert cut.final_metric == whole.final_metric


class Needy(torch.optim.SGD):
    """Has an argument without a default."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)


@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
        lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), weight_decay=0.3),
        lambda groups: torch.optim.Adagrad(groups, lr=0.01, eps=1e-6),
        lambda groups: torch.optim.NAdam(groups, lr=0.01, momentum_decay=0.1),
        lambda groups: Needy(groups, 0.1),
    ],
)
def test_an_optimizer_of_a_stage_does_to_its_weights_what_the_whole_one_does(make: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    expected = make([{"params": [p for p in twin.parameters() if p.ndim > 1]}, {"params": [twin[1].bias], "lr": 0.5}])
    whole = make([{"params": [p for p in model.parameters() if p.ndim > 1]}, {"params": [model[1].bias], "lr": 0.5}])
    last = optimizer_of_stage(whole, model[1].parameters())
    assert [len(group["params"]) for group in last.param_groups] == [1, 1]
    assert [len(group["params"]) for group in optimizer_of_stage(whole, model[0].parameters()).param_groups] == [1]
    for step in range(3):
        for one in (model, twin):
            one.zero_grad()
            one(torch.full((2, 3), float(step))).square().sum().backward()
        last.step()
        with torch.no_grad():
            before = twin[0].weight.clone()
            expected.step()
            twin[0].weight.copy_(before)
        assert torch.equal(model[1].weight, twin[1].weight)
        assert torch.equal(model[1].bias, twin[1].bias)


def test_a_stage_without_weights_of_the_optimizer_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    whole = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(TaskError, match="no weights that the task's optimizer steps"):
        optimizer_of_stage(whole, model[1].parameters())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (table("bsp", "grid:2x2", count=3), "grid:2x2 has 4 workers, and there are 3"),
        (table("grid:2y2", count=4), '"grid:2y2" is no grid'),
        (table("grid:2x2,mixing=star", count=4), "star"),
        (table("grid:2x2", "grid: 2 x 2", count=4), "grid:2x2 is there 2 times"),
        (table("grid:1x9", count=9), "its network has 7 layers with weights, and grid:1x9 needs 9"),
        (table("grid:1x2", count=2, task="stdlib_lm"), "set tied = false"),
        (table("grid:1x2", count=2, task="quadratic"), "does not say how its network is a chain"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(said: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        VirtualPool(make_recipe(said, folder=Path(), where=""))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "workers", "expected"),
    [
        ("grid:2x2", {"faults": [{"kind": "join", "at": "1 s"}]}, "a group of grid:2x2 has 2 workers, and 1 join"),
        (
            "grid:2x2,mixing=0.5 0.5/0.5 0.5",
            {"faults": [{"kind": "join", "at": "1 s"}] * 2},
            "no group can join a grid that mixes by a given 2 x 2 matrix; write mixing=all or",
        ),
        ("grid:2x2", {"failures": {"mtbf": "9 s", "rejoin_after": "1 s"}}, "leave rejoin_after out"),
    ],
)
def test_what_cannot_join_a_grid(spec: str, workers: dict[str, Any], expected: str) -> None:
    said = table(spec, count=4)
    said["workers"] |= workers
    with pytest.raises(ConfigError) as refused:
        make_recipe(said, folder=Path(), where="")
    assert expected in str(refused.value)


def test_a_group_joins_in_a_recipe() -> None:
    said = table("grid:1x2", count=2)
    said["workers"] |= {
        "faults": [{"kind": "join", "at": "1 s"}] * 2,
        "step_time": {"kind": "constant", "mean": "400 ms"},
    }
    recipe = make_recipe(said, folder=Path(), where="")
    run = VirtualPool(recipe).run(Assignment(policy="grid:1x2", seed=0, folder=None), on_figures=lambda figures: None)
    assert not run.problems
    assert run.result is not None
    assert [worker["worker"] for worker in run.result["workers"]] == [0, 1, 2, 3]


RECIPE = """
[task]
name = "digits"

[run]
policies = ["bsp", "grid:1x2"]
samples = 320

[workers]
count = 2

[checkpoint]
folder = "checkpoints"
every = "4 steps"
"""


@pytest.mark.slow
def test_processes_do_grids_among_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    assert invoke(["compare", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "out")]) == 0
    policy, grid = read_results(tmp_path / "out" / "results.json")
    assert (policy.policy, grid.policy, grid.world, grid.status) == ("bsp", "grid:1x2", "process", "finished")
    assert (grid.samples, grid.staleness.max) == (320, 2)
    assert list((tmp_path / "checkpoints" / "grid-1x2-seed0").iterdir())
    told = " ".join(capsys.readouterr().out.split())
    assert "At its stages 0 to 1 gradients were 1.7 and 0.0 updates stale on average." in told
    assert grid.workers[0].staleness is not None
    assert grid.workers[0].staleness.max == 2
    assert (tmp_path / "out" / "report.html").exists()
