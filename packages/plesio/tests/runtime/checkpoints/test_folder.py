"""Checkpoints on disk: what counts as one, what is kept, what is damaged."""

import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import ConfigError, DataError
from plesio.core.results import WorkerTimes
from plesio.protocol.figures import RunInfo
from plesio.runtime.checkpoints.beginning import ResumedCheckpoint
from plesio.runtime.checkpoints.folder import Folder, read_manifest
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.join_options import JoinOptions
from runtime.checkpoint_programs import checkpoints, data, model_of, optimizer_of, train


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    train(policy="bsp", folder=str(folder), every="40 steps")
    return folder


def find(folder: Path, resume: str) -> ResumedCheckpoint | None:
    setting = CheckpointSetting(folder=folder, resume=resume)
    policy = read_manifest(checkpoints(folder)[0]).policy
    return ResumedCheckpoint.find(setting, policy=policy, seed=0, seat=Seat(0))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def test_the_latest_counts_and_what_is_being_written_does_not(folder: Path):
    paths = checkpoints(folder)
    assert [path.name for path in paths] == ["step-00000040", "step-00000080", "step-00000120"]
    paths[-1].rename(paths[-1].with_name(paths[-1].name + ".part"))
    found = Folder(folder).latest()
    assert found is not None
    assert found[0] == paths[1]
    assert found[1].clock == 80


@pytest.mark.parametrize("name", ["__0_0.distcp", "worker-0.pt", "books.json", ".metadata"])
def test_a_byte_that_is_wrong_is_found_and_the_one_before_is_taken(name: str, folder: Path):
    latest = checkpoints(folder)[-1]
    content = bytearray((latest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (latest / name).write_bytes(content)
    found = find(folder, "auto")
    assert found is not None
    assert found.path == checkpoints(folder)[-2]
    with pytest.raises(ConfigError, match=f"is damaged: {name}: its checksum is not the manifest's"):
        find(folder, str(latest))


def test_where_none_is_whole_nothing_is_begun_anew_without_a_word(folder: Path):
    for path in checkpoints(folder):
        (path / "worker-0.pt").unlink()
    with pytest.raises(DataError, match=r"no checkpoint in .* is whole"):
        find(folder, "auto")
    assert find(folder, "no") is None


def test_a_folder_that_is_none_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"is no checkpoint: it has no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(DataError, match="has checkpoint schema 99; this Plesio reads 5"):
        read_manifest(tmp_path)


def test_the_latest_are_kept(tmp_path: Path):
    train(policy="bsp", folder=str(tmp_path), every="20 steps", keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000120", "step-00000140"]


def test_one_process_goes_on_as_if_nothing_had_happened(made: Path, tmp_path: Path):
    whole = train(policy="bsp", folder=str(tmp_path / "whole"))
    for path in checkpoints(made):
        again = train(policy="bsp", folder=str(tmp_path), resume=str(path))
        for name in ("sha", "metrics", "samples", "steps", "clock", "rate"):
            assert again[name] == whole[name], (path.name, name)


def test_what_cannot_go_on_from_a_checkpoint_says_why(folder: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DataError, match="is of another model"):
        plesio.join(model, optimizer, policy="bsp", checkpoint=folder)
    with pytest.raises(ConfigError, match="is of a run with policy bsp, and this one has asp"):
        train(policy="asp", folder=str(folder))


def test_another_seed_would_deal_other_samples(folder: Path):
    model = model_of()
    options = JoinOptions(info=RunInfo(seed=7))
    with pytest.raises(ConfigError, match="is of a run with seed 0, and this one has 7"):
        plesio.join(model, optimizer_of(model, "sgd"), policy="bsp", checkpoint=folder, options=options)


@pytest.mark.parametrize("every", ["often", "0 s", "-3 steps", "1.5 steps", "", "5 fortnights"])
def test_how_often_is_understood_or_refused(every: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="write a time, as in"):
        CheckpointSetting(folder=tmp_path, every=every)


def test_two_objects_of_one_name_are_refused(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with plesio.join(model, optimizer, checkpoint=tmp_path) as session:
        session.register(schedule=schedule)
        with pytest.raises(ConfigError, match='two objects are registered as "schedule"'):
            session.register(schedule=schedule)


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plesio.runtime.checkpoints.worker.torch.save", full)
    done = train(policy="bsp", folder=str(tmp_path), every="100 steps")
    assert checkpoints(tmp_path) == []
    assert any("could not be written" in line and "No space left" in line for line in done["fallbacks"])


def test_a_run_records_how_long_checkpoints_took_and_how_long_it_was_away(tmp_path: Path):
    def times() -> WorkerTimes:
        model = model_of()
        with plesio.join(model, optimizer_of(model, "sgd"), checkpoint=tmp_path, every="10 steps") as session:
            for x, index in session.shard(DataLoader(data(), batch_size=5)):
                torch.nn.functional.cross_entropy(model(x), index % 2).backward()
                session.step()
        return session.report().workers[0]

    first, again = times(), times()
    assert 0 < first.checkpoint_s < first.compute_s
    assert first.restart_s == 0
    assert again.restart_s > 0
    assert again.checkpoint_s > 0
