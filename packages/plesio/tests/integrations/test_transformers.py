"""`PlesioTrainer` in two processes: as the trainer's own DDP under ``bsp``, and sound under relaxed policies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.frameworks import LIMIT_S, POLICIES, by_part, is_one_model

PROGRAM = Path(__file__).with_name("transformers_programs.py")
pytestmark = pytest.mark.timeout(LIMIT_S + 20)
STEPS = 3 * 4  # 58 samples are 15 batches, 8 for each worker (one is drawn twice), and two of them make a step


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """Results of the workers of one job, by part; further parts have jobs of their own."""
    folder = tmp_path_factory.mktemp("transformers")

    def part(name: str) -> tuple[str, dict[str, Any]]:
        own = {"folder": str(folder / name.replace(":", ""))}
        if name in ("causal", "lora", "classification"):
            return "trained", {"task": name, "policies": ["ddp", *POLICIES], **own}
        return "resumed", {"policy": name, **own}

    return by_part(PROGRAM, part, together=("causal", "lora", "bsp", "ssp:2"))


@pytest.fixture(scope="module", params=[pytest.param("classification", marks=pytest.mark.slow), "causal", "lora"])
def trained(request: pytest.FixtureRequest, parts: Callable[[str], list[Any]]) -> list[dict[str, Any]]:
    return parts(request.param)


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
def test_a_run_goes_on_from_a_checkpoint(parts: Callable[[str], list[Any]], policy: str):
    first, second = parts(policy)
    assert first["steps"] == STEPS
    assert first["again"] == second["again"]
    assert first["best"] == "checkpoint-8" if first["losses"][0] < first["losses"][-1] else "checkpoint-12"
    assert first["best_loss"] == pytest.approx(min(first["losses"]), rel=1e-5)
    if policy == "bsp":
        assert first["again"] == pytest.approx(first["plain"], rel=1e-3, abs=1e-5)
