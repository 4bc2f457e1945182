"""Checkpoints of islands, whose ranks hold parts: resumed to the bit by the same islands, to rounding by others."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from plesio.runtime.checkpoints import reading
from plesio.runtime.checkpoints.folder import read_manifest
from plesio.testing import Ending, LocalJob
from runtime import island_programs as programs
from runtime.checkpoint_programs import checkpoints
from support.processes import values_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

PROGRAMS = Path(programs.__file__)
LIMIT_S = 100.0


def run(sizes: str, *, ranks: int = 4, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(ranks) as job:
        return job.run(PROGRAMS, "save", timeout_s=LIMIT_S, sizes=sizes, **arguments)


def resumed(folder: Path, *, at: int, sizes: str = "2", ranks: int = 4, **arguments: Any) -> list[dict[str, Any]]:
    """Return what ranks end with that go on from a checkpoint, and save elsewhere."""
    found = checkpoints(folder)
    again = folder.with_name(f"again-{sizes}-{at}")
    return values_of(run(sizes, ranks=ranks, folder=str(again), resume=str(found[at]), **arguments))


def assert_near(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(torch.tensor(one[name]), torch.tensor(other[name]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["fsdp", pytest.param("tensor", marks=pytest.mark.slow)])
def test_on_the_store_they_go_on_to_the_bit_and_others_to_rounding(way: str, tmp_path: Path):
    """The servers step, so the optimizer's state is in parts on its way to the checkpoint and back.

    FSDP2 has left the parameters whole on the islands that have evaluated.
    """
    how: dict[str, Any] = {"policy": "bsp,exchange=store", "evaluates": way == "fsdp"}
    whole = values_of(run("2", way=way, folder=str(tmp_path / "whole"), **how))
    middle = len(checkpoints(tmp_path / "whole")) // 2
    again = resumed(tmp_path / "whole", at=middle, way=way, **how)
    assert [one["whole"] for one in again] == [one["whole"] for one in whole]
    assert [one["rate"] for one in again] == [one["rate"] for one in whole]
    assert again[0]["seen"] == whole[0]["seen"][-len(again[0]["seen"]) :] != whole[0]["seen"]
    other = resumed(tmp_path / "whole", at=middle, sizes="2,1", ranks=3, way="fsdp", **how)
    assert_near(other[0]["whole"], whole[0]["whole"])
    assert other[0]["samples"] == whole[0]["samples"]
    assert_torch_reads(checkpoints(tmp_path / "whole")[middle])


def assert_torch_reads(path: Path) -> None:
    """Load boxes of columns and of rows with torch's own reader, and compare."""
    ours = reading.read(path)
    theirs = {"model": {name: torch.zeros_like(tensor) for name, tensor in programs.make_model().state_dict().items()}}
    dcp.load(theirs, checkpoint_id=path)
    assert ours["model"].keys() == theirs["model"].keys()
    assert all(torch.equal(ours["model"][name], tensor) for name, tensor in theirs["model"].items())


@pytest.mark.parametrize(
    ("way", "policy", "optimizer"),
    [("fsdp", "diloco:3", "AdamW"), pytest.param("tensor", "local_sgd:3", "momentum", marks=pytest.mark.slow)],
)
def test_killed_ones_on_a_collective_end_as_if_nothing_had_happened(
    way: str, policy: str, optimizer: str, tmp_path: Path
):
    how = {"way": way, "policy": policy, "optimizer": optimizer}
    whole = values_of(run("2", folder=str(tmp_path / "whole"), **how))
    endings = run("2", folder=str(tmp_path / "killed"), die_at=13, **how)  # the checkpoint of step 12 is being written
    assert endings[3].exit_status == -9
    assert all(ending.error for rank, ending in endings.items() if rank < 3), endings
    again = values_of(run("2", folder=str(tmp_path / "killed"), **how))
    assert [one["whole"] for one in again] == [one["whole"] for one in whole]
    assert checkpoints(tmp_path / "killed")


def test_workers_whose_script_asks_for_an_island_train_together_also_from_a_checkpoint_of_islands(tmp_path: Path):
    how = {"policy": "local_sgd:4", "optimizer": "momentum"}
    run("2", ranks=2, way="fsdp", folder=str(tmp_path / "islands"), **how)
    again = resumed(tmp_path / "islands", at=0, sizes="", ranks=2, way="alone", **how)
    anew = values_of(run("", ranks=2, way="alone", folder=str(tmp_path / "workers"), **how))
    assert read_manifest(checkpoints(tmp_path / "workers")[0]).workers == (0, 1)
    for first, second in (again, anew):
        assert first["whole"] == second["whole"]
        assert first["samples"] == programs.SAVED_STEPS * programs.NUM_ISLANDS * programs.BATCH


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "policy"),
    [
        *(("fsdp", policy) for policy in ("asp", "local_sgd:3,exchange=store", "diloco:3,exchange=store")),
        ("ddp", "ssp:2,period=2"),
        ("ddp", "diloco:4,exchange=store,fragments=2"),
        ("two dimensions", "asp,compress=qsgd:8"),
    ],
)
def test_one_island_goes_on_to_the_bit_and_one_process_to_rounding(way: str, policy: str, tmp_path: Path):
    """A rank's own state goes on too: the optimizer of local steps, what the script has registered."""
    ranks = 4 if way == "two dimensions" else 2
    sizes, how = str(ranks), {"policy": policy}
    whole = values_of(run(sizes, ranks=ranks, way=way, folder=str(tmp_path / "whole"), **how))
    for at in (0, len(checkpoints(tmp_path / "whole")) // 2):
        again = resumed(tmp_path / "whole", at=at, sizes=sizes, ranks=ranks, way=way, **how)
        assert [one["whole"] for one in again] == [one["whole"] for one in whole]
    if (
        "compress" not in policy and "diloco" not in policy
    ):  # there it rounds a rank's part, here momentum is a rank's own
        [other] = resumed(tmp_path / "whole", at=0, sizes="1", ranks=1, way=way, **how)
        assert_near(other["whole"], whole[0]["whole"])
    model = reading.read(checkpoints(tmp_path / "whole")[-1])["model"]
    assert model["0.weight"].shape == programs.make_model(policy)[0].weight.shape


@pytest.mark.slow
def test_those_that_go_on_without_a_lost_island_go_on_saving(tmp_path: Path):
    endings = run("2", way="fsdp", policy="asp", folder=str(tmp_path), die_at=7)  # all are to stop after step 8
    assert endings[3].exit_status == -9
    samples = programs.SAVED_STEPS * programs.NUM_ISLANDS * programs.BATCH
    assert [endings[rank].value["samples"] for rank in (0, 1)] == [samples] * 2, endings
    assert read_manifest(checkpoints(tmp_path)[-1]).workers == (0,)
