"""`PlesioStrategy` and `PlesioFabricStrategy` in two processes: Lightning's own DDP under ``bsp``, and sound else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.frameworks import LIMIT_S, POLICIES, by_part, is_one_model

PROGRAM = Path(__file__).with_name("lightning_programs.py")
pytestmark = pytest.mark.timeout(LIMIT_S + 20)
BATCHES = 3 * 12
"""Batches of a worker: 96 samples, four at a time, are 12 for each."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """Results of the workers of one job, by part; further parts have jobs of their own."""
    folder = tmp_path_factory.mktemp("lightning")

    def part(name: str) -> tuple[str, dict[str, Any]]:
        own = {"folder": str(folder / name.replace(":", ""))}
        match name:
            case "by_fabric":
                return name, {"policies": POLICIES, **own}
            case "failed":
                return name, own
            case "started_otherwise":
                return name, {}
            case "automatic" | "manual" | "bf16":
                return "trained", {"kind": name, "policies": ["ddp", *POLICIES], **own}
        return "resumed", {"policy": name, **own}

    quick = ("automatic", "manual", "bsp", "ssp:2", "by_fabric", "started_otherwise", "failed")
    return by_part(PROGRAM, part, together=quick)


@pytest.fixture(scope="module", params=["automatic", "manual", pytest.param("bf16", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest, parts: Callable[[str], list[Any]]) -> list[dict[str, Any]]:
    return [{**one, "kind": request.param} for one in parts(request.param)]


def test_bsp_is_its_own_ddp(trained: list[dict[str, Any]]):
    for one in trained:
        assert one["bsp"]["values"] == pytest.approx(one["ddp"]["values"], rel=1e-3, abs=1e-5)
        assert one["bsp"]["after"] == pytest.approx(one["ddp"]["after"], rel=1e-4)
        if one["kind"] != "manual":  # where DDP evaluates each worker's own averages of batch normalisation
            assert one["bsp"]["losses"] == pytest.approx(one["ddp"]["losses"], rel=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_workers_have_one_model_at_the_end(trained: list[dict[str, Any]], policy: str):
    is_one_model([one[policy] for one in trained])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_results_have_every_step_and_sample(trained: list[dict[str, Any]], policy: str):
    steps = 2 * BATCHES if trained[0]["kind"] == "manual" else BATCHES // 2
    assert trained[0][policy]["steps"] == steps, "global_step counts each optimizer's"
    results = trained[0][policy]["results"]
    assert results == {"steps": 2 * steps, "samples": 2 * BATCHES * 4, "status": "finished", "fallbacks": ()}


@pytest.mark.parametrize("policy", ["bsp", "ssp:2", pytest.param("local_sgd:4", marks=pytest.mark.slow)])
def test_checkpoints_early_stopping_and_resuming(parts: Callable[[str], list[Any]], policy: str):
    first, second = parts(policy)
    assert first["epochs"] == 2, "the second epoch is no better by so much"
    assert first["best"] == pytest.approx(min(first["losses"]), rel=1e-5)
    assert first["kept_steps"] == 6 * (1 + first["losses"].index(min(first["losses"])))
    assert first["written"] == second["written"] == [7.0, 7.0], "what callbacks write at the end is the final model"
    assert first["steps"] == 4 * 6
    assert len(first["last_losses"]) == 2, "it has gone on after the second epoch"
    assert first["again"] == second["again"]
    if policy == "bsp":
        assert first["again"] == pytest.approx(first["straight"], rel=1e-3, abs=1e-5)
        assert first["last_losses"] == pytest.approx(first["straight_losses"][2:], rel=1e-4)


def test_fabric(parts: Callable[[str], list[Any]]):
    first, second = parts("by_fabric")
    for policy in POLICIES:
        one, other = first[policy], second[policy]
        assert one["losses"] == other["losses"]
        assert one["losses"][-1] < one["losses"][0]
        assert one["ended"] == other["ended"] == one["loaded"] == other["loaded"]
        assert (one["rate"], one["epoch"]) == (0.02, 3)
        assert one["results"] == {"status": "finished", "fallbacks": ()}


def test_an_error_of_one_ends_the_run_with_its_name(parts: Callable[[str], list[Any]]):
    first, second = parts("failed")
    assert second == "ValueError: no more"
    assert "worker 1" in first
    assert "no more" in first


def test_the_trainer_has_as_many_devices_as_there_are_workers(parts: Callable[[str], list[Any]]):
    for line in parts("started_otherwise"):
        assert "2 workers were started" in line
        assert "write devices=2, num_nodes=1" in line
