"""One job a folder, and nothing in it that another user, or a link, could have put there."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plesio
from plesio.core.errors import ConfigError, DataError, TransportError
from plesio.runtime.checkpoints import claim as claims
from plesio.runtime.checkpoints.claim import FolderClaim
from plesio.runtime.checkpoints.folder import Folder, HashedFile
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.job import Job
from plesio.runtime.launcher import JoinDefaults, launch
from plesio.runtime.worker.environment import WorkerPlace

TAKEN = rf"another job takes checkpoints in .* \(process {os.getpid()} on host .*, since 2.*\); end it, or use a folder"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_PATIENCE_S", 0.0)


def test_a_folder_is_one_job_s_until_it_lets_go(tmp_path: Path):
    first, second = FolderClaim(tmp_path), FolderClaim(tmp_path)
    first.take()
    with pytest.raises(ConfigError, match=TAKEN):
        second.take()
    with pytest.raises(ConfigError, match=TAKEN):
        second.check()
    first.close()
    second.check()
    second.take()
    second.close()


def test_workers_of_a_job_hold_it_beside_each_other_and_longer_than_worker_0(tmp_path: Path):
    leader, other = FolderClaim(tmp_path), FolderClaim(tmp_path)
    leader.take()
    leader.confirm(leads=True)
    other.confirm(leads=False)
    leader.close()
    other.confirm(leads=True)
    with pytest.raises(ConfigError, match=TAKEN):
        FolderClaim(tmp_path).take()
    other.close()


def test_who_comes_to_lead_when_another_job_has_the_folder_writes_nothing(tmp_path: Path):
    leader, other, next_job = FolderClaim(tmp_path), FolderClaim(tmp_path), FolderClaim(tmp_path)
    leader.take()
    other.confirm(leads=False)
    leader.close()
    next_job.take()
    with pytest.raises(ConfigError, match=TAKEN):
        other.confirm(leads=True)
    next_job.close()


def test_a_killed_job_s_folder_is_free_at_once_though_its_children_live(tmp_path: Path):
    program = (
        "import os, sys, time; from pathlib import Path; from plesio.runtime.checkpoints.claim import FolderClaim\n"
        "claim = FolderClaim(Path(sys.argv[1])); claim.take()\n"
        "if os.fork() == 0: print(os.getpid(), flush=True); sys.stdin.read(); os._exit(0)\n"
        "time.sleep(60)"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with job:
        assert job.stdout is not None
        child = int(job.stdout.readline())
        with pytest.raises(ConfigError, match=rf"\(process {job.pid} on host"):
            FolderClaim(tmp_path).take()
        job.kill()
        job.wait()
        os.kill(child, 0)
        mine = FolderClaim(tmp_path)
        mine.take()
        mine.close()


def test_a_second_run_is_refused_by_join_and_by_the_launcher(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no worker is started')")
    folder = tmp_path / "checkpoints"
    with plesio.join(model, optimizer, policy="bsp", checkpoint=folder):
        with pytest.raises(ConfigError, match=TAKEN):
            plesio.join(model, optimizer, policy="bsp", checkpoint=folder)
        with pytest.raises(ConfigError, match=TAKEN):
            launch(script, defaults=JoinDefaults(checkpoints=CheckpointSetting(folder=folder)))
    plesio.join(model, optimizer, policy="bsp", checkpoint=folder).close()


def test_a_join_that_fails_lets_go(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"local_rank": 0, "local_workers": 2, "address": "127.0.0.1", "port": port, "agent_hosts_store": False}
    place = WorkerPlace(rank=0, num_workers=2, **here)
    with Job(place, meet_s=1.0) as job:
        options = plesio.JoinOptions(job=job)
        with pytest.raises(TransportError, match=r"workers \[1\] have not come") as kept:
            plesio.join(model, optimizer, policy="bsp", checkpoint=tmp_path / "new", options=options)
        FolderClaim(tmp_path / "new").check()
    assert kept.tb is not None  # with all that the frames refer to


def test_a_folder_that_cannot_be_cleared_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def clear(_self: Folder) -> None:
        raise DataError("another user's")

    monkeypatch.setattr(Folder, "clear", clear)
    model = torch.nn.Linear(2, 1)
    with pytest.raises(DataError, match="another user's") as kept:
        plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="bsp", checkpoint=tmp_path)
    FolderClaim(tmp_path).check()
    assert kept.tb is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_another_user_has_made_is_refused(tmp_path: Path):
    folder = Folder(tmp_path)
    part = folder.begin(10)
    assert folder.begin(10) == part
    os.chown(part, 12345, 12345)
    for act in (lambda: folder.begin(10), folder.clear):
        with pytest.raises(DataError, match=r"step-00000010\.part belongs to another user \(12345\)"):
            act()


def test_a_link_is_not_followed(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = Folder(tmp_path / "run")
    folder.path.mkdir()
    folder.part(10).symlink_to(elsewhere)
    with pytest.raises(DataError, match="is no folder; delete it"):
        folder.begin(10)
    part = folder.begin(20)
    (part / "worker-0.pt").symlink_to(elsewhere / "file")
    with pytest.raises(OSError, match="symbolic links"):
        HashedFile(part / "worker-0.pt")
    part.chmod(0o777)
    with pytest.raises(DataError, match=r"others may write to .*step-00000020\.part"):
        folder.begin(20)
    (folder.path / ".lock").symlink_to(elsewhere / "lock")
    with pytest.raises(ConfigError, match="cannot be written to"):
        FolderClaim(folder.path).take()
    assert list(elsewhere.iterdir()) == []
