"""Mistakes with checkpoints give one line: another optimizer, a full disk, a crash at any step of a removal."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import plesio
from plesio.core.errors import ConfigError, DataError
from plesio.runtime.checkpoints import folder as folders
from plesio.runtime.checkpoints.folder import Folder, read_manifest
from plesio.runtime.checkpoints.part_reports import PartReport, Seat, await_reports
from plesio.runtime.checkpoints.setting import CheckpointSetting

Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def groups(*numbers: int, **options: Any) -> Make:
    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        layers = [list(model[number].parameters()) for number in numbers]  # type: ignore[index]
        return torch.optim.SGD([{"params": layer} for layer in layers], **{"lr": 0.1, **options})

    return make


def run(folder: Path, make: Make = sgd, *, steps: int = 3, scheduled: bool = False, **arguments: Any) -> list[str]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = make(model)
    with plesio.join(model, optimizer, policy="bsp", checkpoint=folder, every="1 steps", **arguments) as session:
        if scheduled:
            session.register(schedule=torch.optim.lr_scheduler.StepLR(optimizer, 1))
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            session.step()
    return list(session.report().fallbacks)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (sgd, adamw, "was trained with SGD, and this program has AdamW: make it SGD again, or begin anew"),
        (adamw, sgd, "was trained with AdamW, and this program has SGD"),
        (sgd, groups(0, 1), "the checkpoint's optimizer has 1 parameter groups, this one 2"),
        (groups(0, 1), groups(1, 0), 'has another parameter group 0, which differs in "1.weight"'),
    ],
)
def test_another_optimizer_is_named(before: Make, after: Make, said: str, tmp_path: Path):
    run(tmp_path, before)
    with pytest.raises(DataError, match=said):
        run(tmp_path, after)
    assert run(tmp_path, after, resume="no") == []


def test_a_changed_setting_is_told_and_the_checkpoint_s_holds_each_time(tmp_path: Path):
    run(tmp_path, groups(0, 1, momentum=0.9), scheduled=True)
    for _ in range(2):
        said = run(tmp_path, groups(0, 1, lr=0.5, momentum=0.9), scheduled=True)
        assert [re.sub(" in the program.*", "", line) for line in said] == [
            "SGD's lr (group 0) is 0.5",
            "SGD's lr (group 1) is 0.5",
        ]
    assert run(tmp_path, groups(0, 1, momentum=0.9), scheduled=True) == []


def test_a_state_of_another_optimizer_is_named():
    model = torch.nn.Linear(2, 1)
    with plesio.join(model, sgd(model), policy="bsp") as session:
        state = session.state_dict()
    for _ in range(2):
        with plesio.join(model, adamw(model), policy="bsp") as session:
            with pytest.raises(DataError, match="the state is of a run with SGD, and this session trains with AdamW"):
                session.load_state_dict(state)
            state = {**state, "plesio": {**state["plesio"], "optimizer": "SGD"}}


def test_a_disk_that_is_full_at_any_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write, left = folders.HashedFile.write, 0

    def full(self: folders.HashedFile, data: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(folders.HashedFile, "write", full)
    left, number = -1, 0
    while left < 0:
        number += 2
        left = number
        shutil.rmtree(tmp_path)
        said = run(tmp_path, steps=1)
        names = [path.name for path in tmp_path.iterdir()]
        assert sorted(names) == ([".lock"] if left < 0 else [".lock", "step-00000001"])
        assert bool(said) == (left < 0)
        assert all("could not be written" in line and "No space left" in line for line in said)
    assert number > 4


@pytest.mark.parametrize("error", [TypeError("whatever"), AttributeError("it is")])
def test_every_error_of_the_writer_is_told(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("plesio.runtime.checkpoints.saver.reading.check", fails)
    [line] = run(tmp_path)
    assert f"could not be written to {tmp_path}: {type(error).__name__}: {error}" in line
    assert not list(tmp_path.glob("step-*"))


def test_a_crash_within_a_removal_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(tmp_path)
    folder = Folder(tmp_path)
    monkeypatch.setattr(folders.shutil, "rmtree", lambda path, **_: Path(path, "manifest.json").unlink(missing_ok=True))
    folder.keep(1)
    monkeypatch.undo()
    assert [path.name for path in folder.all()] == ["step-00000003"]
    assert len(folder.unfinished()) == 2
    assert folder.latest() is not None
    run(tmp_path)
    assert folder.unfinished() == []


def test_what_a_worker_says_is_json_and_can_run_nothing(tmp_path: Path):
    never = tmp_path / "never"
    (tmp_path / "report-0.json").write_bytes(b"cos\nsystem\n(S'touch " + bytes(never) + b"'\ntR.")
    with pytest.raises(msgspec.DecodeError):
        await_reports(tmp_path, [Seat(0)], patience_s=lambda: 0.1)
    assert not never.exists()


def test_others_are_not_waited_for_when_one_cannot_write_or_is_lost(tmp_path: Path):
    (tmp_path / "report-0.json").write_bytes(msgspec.json.encode(PartReport(error="No space left on device")))
    with pytest.raises(DataError, match="worker 0 could not write its part: No space left"):
        await_reports(tmp_path, [Seat(0)], patience_s=lambda: 600.0)
    (tmp_path / "report-0.json").write_bytes(msgspec.json.encode(PartReport()))
    with pytest.raises(DataError, match="worker 1 was lost before it had written its part"):
        await_reports(tmp_path, [Seat(0), Seat(1)], patience_s=lambda: 600.0, lost={1})


def test_a_place_where_no_checkpoint_can_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "within"):
        monkeypatch.setenv("PLESIO_CHECKPOINT", str(folder))
        model = torch.nn.Linear(2, 1)
        with pytest.raises(ConfigError, match=r"cannot be written to .*: a file is in its place"):
            plesio.join(model, sgd(model), policy="bsp")
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        CheckpointSetting(folder=tmp_path, resume=str(tmp_path))


DOCUMENTED = {
    "SGD without momentum": lambda model: sgd(model),
    "momentum in one group": lambda model: torch.optim.SGD(
        [{"params": model[0].parameters(), "momentum": 0.9}, {"params": model[1].parameters()}], lr=0.1
    ),
    "AdamW with two groups": lambda model: torch.optim.AdamW(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.2}], lr=0.1
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documented_code_of_torch_reads_it(name: str, tmp_path: Path):
    guide = (Path(__file__).parents[5] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(from torch\.distributed\.checkpoint import load\n.*?)```", guide, flags=re.DOTALL)
    run(tmp_path, DOCUMENTED[name], scheduled=True)
    latest = Folder(tmp_path).all()[-1]
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = DOCUMENTED[name](model)
    exec(code.replace("runs/checkpoints/step-00001200", str(latest)), {"model": model, "optimizer": optimizer})
    assert read_manifest(latest).optimizers[0].name == type(optimizer).__name__
    found = [group["lr"] for group in optimizer.param_groups]
    torch.manual_seed(1)
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    with plesio.join(other, made := DOCUMENTED[name](other), policy="bsp", checkpoint=tmp_path):
        assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
        assert found == [group["lr"] for group in made.param_groups]
        assert len(optimizer.state) == len(made.state)
