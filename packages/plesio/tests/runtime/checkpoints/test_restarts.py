"""`plesio run --restarts`: real workers, killed at a step, go on from the last checkpoint by themselves."""

import re
import textwrap
from pathlib import Path

import pytest

from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.launcher import JoinDefaults, launch

PROGRAM = """
    import os, pathlib, signal, sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import plesio

    policy, kill_at = sys.argv[1], {int(text) for text in sys.argv[2:]}
    killed = pathlib.Path(__file__).with_name("killed")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.randn(320, 2)), batch_size=4, shuffle=True)
    options = plesio.JoinOptions(elastic=False)  # else the others finish the run without the one that is killed
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy, options=options) as session:
        if session.rank == 0:
            print("begins at", session.clock)
        for _ in range(2):
            for (x,) in session.shard(loader):
                before = killed.read_text().split() if killed.exists() else []
                last = session.rank == session.num_workers - 1
                if last and session.clock in kill_at and str(session.clock) not in before:
                    killed.write_text(" ".join([*before, str(session.clock)]))
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = model(x).square().mean()
                loss.backward()
                session.step(loss)
    if session.rank == 0:
        print("ended with", session.report().samples)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def setting(script: Path, **arguments: str) -> JoinDefaults:
    checkpoints = CheckpointSetting(folder=script.parent / "checkpoints", every="10 steps", **arguments)
    return JoinDefaults(checkpoints=checkpoints)


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_loses_a_worker_goes_on_from_its_checkpoint(
    num_workers: int, script: Path, capfd: pytest.CaptureFixture[str]
):
    told = setting(script, resume="no")
    assert launch(script, ["bsp", "55"], num_workers=num_workers, defaults=told, restarts=2) == 0
    out, err = capfd.readouterr()
    first, second = (int(text) for text in re.findall(r"begins at (\d+)", out))
    assert first == 0 < second <= 55
    assert "ended with 640" in out
    (lost,) = re.findall(r"^plesio: the run failed (.*)$", err, flags=re.M)
    assert re.fullmatch(rf"\S+ \w*s after the checkpoint of step {second} was written; restart 1 of 2", lost)


@pytest.mark.slow
def test_who_has_no_restarts_left_fails(script: Path, capfd: pytest.CaptureFixture[str]):
    assert launch(script, ["bsp", "1", "2"], num_workers=2, defaults=setting(script), restarts=1) != 0
    out, err = capfd.readouterr()
    assert re.findall(r"begins at (\d+)", out) == ["0", "0"]
    assert re.findall(r"the run failed .* after it began, all of which is lost; restart 1 of 1", err)


@pytest.mark.slow
def test_a_run_that_goes_on_without_the_lost_worker_is_not_started_again(
    script: Path, capfd: pytest.CaptureFixture[str]
):
    assert launch(script, ["asp", "0"], num_workers=2, defaults=setting(script), restarts=2) == 0
    out, err = capfd.readouterr()
    assert out.count("begins at") == 1
    assert "ended with" in out
    assert "the others have finished the run without rank 1" in err
    assert "restart" not in err


@pytest.mark.slow
def test_what_is_refused_is_not_tried_again(script: Path, capfd: pytest.CaptureFixture[str]):
    assert launch(script, ["ssp:-1"], num_workers=2, defaults=setting(script), restarts=3) == 2
    out, err = capfd.readouterr()
    assert "begins at" not in out
    assert "restart" not in err


def test_what_is_stopped_is_not_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = tmp_path / "train.py"
    script.write_text("import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(60)\n")
    assert launch(script, num_workers=1, defaults=setting(script), restarts=3) == 130
    assert "restart" not in capfd.readouterr().err
