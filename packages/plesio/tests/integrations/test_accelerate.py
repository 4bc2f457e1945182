"""`PlesioAccelerator` in two processes: as Accelerate's own DDP under ``bsp``, and sound under relaxed policies."""

from pathlib import Path
from typing import Any

import pytest

from support.frameworks import LIMIT_S, POLICIES
from support.processes import on_processes

PROGRAM = Path(__file__).with_name("accelerate_programs.py")
pytestmark = pytest.mark.timeout(LIMIT_S + 20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("accelerate")
    return on_processes(2, PROGRAM, "trained", limit_s=LIMIT_S, policies=["ddp", *POLICIES], folder=str(folder))


def test_bsp_is_its_own_ddp(trained: list[dict[str, Any]]):
    for one in trained:
        assert one["bsp"]["metrics"] == [pytest.approx(epoch, rel=1e-5) for epoch in one["ddp"]["metrics"]]
        assert one["bsp"]["norms"] == pytest.approx(one["ddp"]["norms"], rel=1e-4)
        assert one["bsp"]["rate"] == pytest.approx(one["ddp"]["rate"])


@pytest.mark.parametrize("policy", POLICIES)
def test_all_workers_have_the_metrics_of_one_model(trained: list[dict[str, Any]], policy: str):
    first, second = (one[policy] for one in trained)
    assert first["metrics"] == second["metrics"]
    assert [epoch["seen"] for epoch in first["metrics"]] == [31] * 3, "samples that fill the last batch do not count"
    assert first["metrics"][-1]["loss"] < 0.5 < first["metrics"][0]["loss"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_results_have_every_step_and_sample(trained: list[dict[str, Any]], policy: str):
    found = trained[0][policy]
    batches = 3 * 12  # of a worker: 90 samples are 23 batches, and 12 for each
    assert (found["steps"], found["samples"], found["status"]) == (batches // 2 * 2, 2 * batches * 4, "finished")
    assert found["fallbacks"] == ()
    gradient_bytes = 4 * (5 * 16 + 16 + 2 * 16 + 16 * 2 + 2)
    if policy == "bsp":  # by the group that Accelerate has made
        assert found["bytes"] > 2 * found["steps"] // 2 * gradient_bytes


def test_several_models_are_trained_in_turns_as_by_its_own_ddp(tmp_path: Path):
    policies = ["bsp", "local_sgd:4", "ssp:2"]
    workers = on_processes(2, PROGRAM, "gan", limit_s=LIMIT_S, policies=["ddp", *policies], folder=str(tmp_path))
    for one in workers:
        assert one["bsp"]["parameters"] == pytest.approx(one["ddp"]["parameters"], rel=1e-4, abs=1e-6)
        assert one["bsp"]["norms"] == pytest.approx(one["ddp"]["norms"], rel=1e-4)
    iterations = 2 * 12
    for policy in policies:
        first, second = (one[policy] for one in workers)
        assert first["parameters"] == second["parameters"]
        assert (first["steps"], first["samples"]) == (2 * 2 * iterations, 2 * iterations * 4)
        assert first["fallbacks"] == ()


@pytest.mark.parametrize("policy", ["bsp", pytest.param("local_sgd:4", marks=pytest.mark.slow), "ssp:2"])
def test_a_run_goes_on_from_what_was_saved(policy: str, tmp_path: Path):
    first, second = on_processes(2, PROGRAM, "saved_and_loaded", limit_s=LIMIT_S, policy=policy, folder=str(tmp_path))
    assert first["loaded"] == first["at_save"] == second["loaded"]
    assert first["again"] == second["again"] != first["loaded"]
    if policy == "bsp":
        assert first["again"] == pytest.approx(first["straight"], rel=1e-4, abs=1e-6)
    assert "load before the first step" in first["load_state"]
    assert first["once_more"] == 12, "a prepared optimizer joins anew"
    assert first["has_group_after_end"], "torch may fail to make a second one"
    assert "even_batches=False gives one worker more" in first["uneven"]
    assert first["rate"] < 0.02


def test_without_gpus_the_workers_are_one_group_though_the_script_does_not_ask_for_cpus(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = on_processes(2, PROGRAM, "without_gpus", limit_s=LIMIT_S)
    assert [(one["place"], one["device"]) for one in found] == [((0, 2), "cpu"), ((1, 2), "cpu")]
    for one in found:
        assert "left each of 2 workers alone" in one["alone"]
        assert "\n" not in one["alone"]
