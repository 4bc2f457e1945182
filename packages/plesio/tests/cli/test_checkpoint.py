"""`plesio checkpoint`, and checkpoints from other commands."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio.runtime.checkpoints.folder import Manifest, seal, written
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.checkpoints.tensors import Share, state_of
from plesio.runtime.worker.exchange.replica import Replica


def trained() -> Replica:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    replica = Replica(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    model(torch.ones(2, 3)).square().mean().backward()
    replica.optimizer.step()
    return replica


def write(folder: Path, clock: int, *, created_unix_s: float | None = None) -> Path:
    part = folder / f"step-{clock:08}.part"
    part.mkdir(parents=True)
    share = Share(0, state_of(trained()), num_shares=1)
    _, places = share.write(part)
    share.finish(part, places)
    return seal(
        part,
        Manifest(
            policy="switch:bsp/asp@30",
            stage="asp",
            clock=clock,
            samples=10 * clock,
            elapsed_s=2.5,
            num_workers=2,
            workers=(0, 1),
            layout="",
            seed=0,
            created_unix_s=time.time() if created_unix_s is None else created_unix_s,
            files={file.name: written(file) for file in part.iterdir()},
        ),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for clock in (20, 40, 1200):
        write(folder, clock)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A folder that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_run_s_checkpoints_are_shown(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (run / "step-00001220.part").mkdir()
    file = next((run / "step-00000040").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    assert invoke(["checkpoint", "show", str(run), "--json", str(tmp_path / "shown.json")]) == 0
    _, first, damaged, last, unfinished, *said, written = lines(capsys)
    assert first.split()[:7] == ["step-00000020", "20", "200", "2.5", "s", "switch:bsp/asp@30", "asp"]
    assert damaged.split()[0] == "step-00000040"
    assert last.split()[:2] == ["step-00001200", "1,200"]
    assert unfinished.split()[0] == "step-00001220.part"
    assert [line.partition(" cannot be used: ")[0] for line in said] == ["step-00000040", "step-00001220.part"]
    assert written == str(tmp_path / "shown.json")
    told = json.loads(Path(written).read_text())
    assert [one["manifest"] and one["manifest"]["clock"] for one in told] == [20, 40, 1200, None]
    assert [one["fault"] is None for one in told] == [True, False, True, False]


def test_one_checkpoint_is_shown(made: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["checkpoint", "show", str(made / "step-00000040")]) == 0
    assert [line.split()[0] for line in lines(capsys)] == ["checkpoint", "step-00000040"]


def test_whole_checkpoints_are_verified(run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "step-00001220.part").mkdir()
    assert invoke(["checkpoint", "verify", str(run)]) == 0
    assert [line.partition(": ")[2] for line in lines(capsys)] == [*["whole"] * 3, "never finished, or being written"]


@pytest.mark.parametrize("damage", ["flipped", "missing", "manifest"])
def test_a_damaged_file_is_named(run: Path, capsys: pytest.CaptureFixture[str], damage: str):
    path = run / "step-00000040"
    file = next(path.glob("*.distcp"))
    if damage == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(bytes(content))
    elif damage == "missing":
        file.unlink()
    else:
        file = path / "manifest.json"
        file.write_text("{")
    assert invoke(["checkpoint", "verify", str(run)]) == 1
    (said,) = [line for line in lines(capsys) if not line.endswith(": whole")]
    assert said.startswith("step-00000040: ")
    assert file.name in said


def test_an_export_loads_in_plain_torch(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = tmp_path / "model.pt"
    assert invoke(["checkpoint", "export", str(made), "--out", str(out)]) == 0
    assert lines(capsys)[0].startswith("step-00001200, step 1,200, switch:bsp/asp@30: ")
    loaded, replica = torch.load(out, weights_only=True), trained()
    assert loaded.keys() == {"model", "optimizer"}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    for one, other in zip(model.parameters(), replica.model.parameters(), strict=True):
        assert torch.equal(one, other)
        for key, value in optimizer.state[one].items():
            assert torch.equal(value, replica.optimizer.state[other][key])
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_an_export_takes_the_newest_that_is_whole(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (run / "step-00001200" / ".metadata").unlink()
    assert invoke(["checkpoint", "export", str(run), "--out", str(tmp_path / "model.pt")]) == 0
    assert lines(capsys)[0].startswith("step-00000040, ")


def test_the_latest_is_the_one_that_was_taken_last(run: Path, capsys: pytest.CaptureFixture[str]):
    write(run, 30, created_unix_s=time.time() + 1)  # by a run that was taken back to step 20
    assert invoke(["checkpoint", "show", str(run)]) == 0
    assert lines(capsys)[-1].split()[0] == "step-00000030"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("checkpoint shw", "No such command"),
        ("checkpoint show none", "there is no folder none"),
        ("checkpoint show train.py", "train.py is no folder; write that of a checkpoint"),
        ("checkpoint show .", "has no checkpoints; run in it does"),
        ("checkpoint verify none", "there is no folder none"),
        ("checkpoint show run --json none/x.json", "there is no folder none"),
        ("checkpoint export run", "Missing option '--out'"),
        ("checkpoint export run --out none/x.pt", "there is no folder none"),
        ("checkpoint export run/step-00000020 --out x.pt", "step-00000020 is damaged: __0_0.distcp: No such file"),
        ("run --keep 2 train.py", "--keep is about checkpoints; add --checkpoint DIR"),
        ("run --checkpoint x --every soon train.py", 'checkpoints every "soon": write a time'),
        ("run --checkpoint x --keep 0 train.py", "keep is 0; write a whole number of 1 or more"),
        (
            "run --checkpoint x --resume nothere train.py",
            'resume "nothere": there is no checkpoint; write auto, no, or',
        ),
        ("run --checkpoint train.py train.py", "checkpoints cannot be written to"),
        ("run --restarts 2 train.py", "add --checkpoint DIR"),
        ("run --restarts -1 train.py", "--restarts"),
        ("run --checkpoint x --restarts 2 --join a:1 train.py", "--restarts 2 is for a whole job"),
        ("simulate digits --every 30s", "--checkpoint is missing"),
        ("simulate digits --checkpoint x --every 3x", '--every: checkpoints every "3x": write a time'),
        ("simulate digits --checkpoint x --keep 0", "--keep is 0; write 1 or more"),
        ("simulate train.py --every 30s", "--checkpoint is missing"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    run: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], str], line: str, message: str
):
    monkeypatch.chdir(run.parent)
    next((run / "step-00000020").glob("*.distcp")).unlink()
    (run.parent / "train.py").write_text("")
    assert message in refused(line)


def test_showing_and_verifying_need_no_torch(made: Path):
    code = f"""
import sys
from plesio.cli.commands import invoke
status = invoke(["checkpoint", "show", {str(made)!r}]) or invoke(["checkpoint", "verify", {str(made)!r}])
sys.exit(status or "torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_workers_read_what_plesio_run_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    named = tmp_path / "a" / "step-00000020"
    named.mkdir(parents=True)
    (named / "manifest.json").touch()
    setting = CheckpointSetting(folder=Path("a"), every="500 steps", keep=7, resume="a/step-00000020")
    for name, value in setting.environment().items():
        monkeypatch.setenv(name, value)
    told = CheckpointSetting.of(None, every="10 min", keep=3, resume="auto")
    assert told == CheckpointSetting(
        folder=tmp_path / "a", every="500 steps", keep=7, resume=str(tmp_path / "a/step-00000020")
    )


def test_a_recipe_s_runs_have_folders_of_their_own_and_are_resumed(tmp_path: Path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'task.name = "quadratic"\nrun = { policies = ["bsp", "asp"], samples = 2400 }\n'
        'workers = { count = 2, step_time = { kind = "constant", mean = "20 ms" } }\n'
        'checkpoint = { folder = "saved", every = "10 steps", keep = 2 }\n'
    )
    out = tmp_path / "out"
    line = ["compare", str(recipe), "--out", str(out), "--world", "virtual"]
    assert invoke(line) == 0
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["asp-seed0", "bsp-seed0"]
    last = {policy: sorted((tmp_path / "saved" / f"{policy}-seed0").iterdir())[-1] for policy in ("bsp", "asp")}
    whole = json.loads((out / "results.json").read_text())
    taken_unix_s = {path: (path / "manifest.json").stat().st_mtime for path in last.values()}
    (out / "results.json").unlink()  # as if it had been interrupted in the midst of its first run
    assert invoke([*line, "--resume"]) == 0
    again = json.loads((out / "results.json").read_text())
    assert [run["parameters_sha256"] for run in again["runs"]] == [run["parameters_sha256"] for run in whole["runs"]]
    assert {path: (path / "manifest.json").stat().st_mtime for path in last.values()} == taken_unix_s


def test_a_number_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PLESIO_CHECKPOINT", str(tmp_path))
    monkeypatch.setenv("PLESIO_CHECKPOINT_KEEP", "some")
    with pytest.raises(ConfigError, match=r"PLESIO_CHECKPOINT_KEEP=some: write how many"):
        CheckpointSetting.of(None, every="10 min", keep=3, resume="auto")
