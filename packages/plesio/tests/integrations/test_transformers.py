"""`PlesioTrainer` in two processes: as the trainer's own DDP under ``bsp``, and sound under relaxed policies."""

from pathlib import Path
from typing import Any

import pytest

from support.frameworks import LIMIT_S, POLICIES, is_one_model
from support.processes import on_processes

PROGRAM = Path(__file__).with_name("transformers_programs.py")
pytestmark = pytest.mark.timeout(LIMIT_S + 20)
STEPS = 3 * 4  # 58 samples are 15 batches, 8 for each worker (one is drawn twice), and two of them make a step


@pytest.fixture(scope="module", params=[pytest.param("classification", marks=pytest.mark.slow), "causal", "lora"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder, task = tmp_path_factory.mktemp("transformers"), request.param
    return on_processes(
        2, PROGRAM, "trained", limit_s=LIMIT_S, task=task, policies=["ddp", *POLICIES], folder=str(folder)
    )


def test_bsp_is_its_own_ddp(trained: list[dict[str, Any]]):
    for one in trained:
        for key in ("losses", "eval_accuracy", "rates"):
            assert one["bsp"][key] == pytest.approx(one["ddp"][key], rel=1e-4)
        assert one["bsp"]["norms"] == pytest.approx(one["ddp"]["norms"], rel=1e-3)
        assert one["bsp"]["values"] == pytest.approx(one["ddp"]["values"], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_workers_have_one_model_at_the_end(trained: list[dict[str, Any]], policy: str):
    is_one_model([one[policy] for one in trained])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_results_have_every_step_and_sample(trained: list[dict[str, Any]], policy: str):
    results = trained[0][policy]["results"]
    assert trained[0][policy]["steps"] == STEPS
    assert results == {"steps": 2 * STEPS, "samples": 2 * STEPS * 2 * 4, "status": "finished", "fallbacks": ()}


@pytest.mark.parametrize("policy", ["bsp", "ssp:2", pytest.param("local_sgd:4", marks=pytest.mark.slow)])
def test_a_run_goes_on_from_a_checkpoint(policy: str, tmp_path: Path):
    first, second = on_processes(2, PROGRAM, "resumed", limit_s=LIMIT_S, policy=policy, folder=str(tmp_path))
    assert first["steps"] == STEPS
    assert first["again"] == second["again"]
    assert first["best"] == "checkpoint-8" if first["losses"][0] < first["losses"][-1] else "checkpoint-12"
    assert first["best_loss"] == pytest.approx(min(first["losses"]), rel=1e-5)
    if policy == "bsp":
        assert first["again"] == pytest.approx(first["plain"], rel=1e-3, abs=1e-5)
