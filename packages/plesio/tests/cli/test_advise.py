import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.advisor import flips
from plesio.cli.commands import invoke

TASK = ["quadratic", "--option", "dimension=8", "--option", "num_samples=256", "--batch-size", "8"]
QUICK = ["--step-time", "1 ms", "--measure", "4s"]
MEMORY = """
hosts = 4
memory = "{memory}"
[nic]
latency = "50 us"
bandwidth = "1 Gbit/s"
"""

DEEP = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from plesio.tasks import Task

inputs = torch.randn(128, 64, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs)

def build(seed):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))  # 133 kB, and as many gradients; Adam has twice that
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)

def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()

def metric(model):
    return -loss(model, data.tensors).item()

make = Task(name="deep", build=build, train_set=lambda: data, loss=loss, metric=metric, metric_name="error",
            metric_goal="max", batch_size=4, num_epochs=2)
"""


@pytest.fixture(autouse=True)
def _short_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the probes and the axes, which do not matter here."""
    monkeypatch.setattr("plesio.bench.advise_probe.PROBE_S", 0.05)
    for name in ("BANDWIDTHS", "IMBALANCES", "SCALES", "MTBFS_S"):
        points = getattr(flips, name)
        monkeypatch.setattr(flips, name, points[:: len(points) // 2])


def test_an_answer_its_numbers_its_page_and_its_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, numbers = tmp_path / "out", tmp_path / "advice.json"
    line = ["advise", *TASK, *QUICK, "--cluster", "4x1gbe", "--workers", "2", "--epochs", "3", "--price", "2"]
    assert invoke([*line, "--out", str(out), "--json", str(numbers), "--failures", "1h"]) == 0
    printed, progress = capsys.readouterr()
    first = printed.splitlines()[0]
    assert first.startswith("Use ") or first.replace(" for now", "").startswith("Stay with bsp (DDP): suboptimality")
    assert "with plesio.join(model, optimizer, policy=" in printed
    assert "cost" in printed
    assert "bsp, seed 0" in progress
    values = json.loads(numbers.read_text())
    assert values["ranking"][0]["how"] == "measured"
    assert values["chosen"] in {row["spec"] for row in values["ranking"]}
    assert {flip["axis"] for flip in values["flips"]} == {"bandwidth", "imbalance", "model size", "failures"}
    page = (out / "advice.html").read_text()
    assert [f'id="{slug}"' in page for slug in ("progress", "flip-bandwidth", "ranking", "code")] == [True] * 4
    capsys.readouterr()
    # what it recommends can be run
    recipe = out / "recipe.toml"
    assert invoke(["compare", str(recipe), "--world", "virtual", "--seeds", "0", "--out", str(tmp_path / "again")]) == 0


def test_where_ddp_does_not_fit_fsdp_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cluster, task = tmp_path / "small.toml", tmp_path / "deep.py"
    cluster.write_text(MEMORY.format(memory="300 kB"))
    task.write_text(DEEP)
    assert invoke(["advise", f"{task}:make", *QUICK, "--cluster", str(cluster)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("bsp (DDP) does not fit: it needs")
    assert "fsdp does, with" in printed
    assert 'policy="fsdp"' in printed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["digits"], "--cluster is missing: write a name or a file"),
        (["digtis", "--cluster", "4x1gbe"], 'there is no task "digtis"; did you mean "digits"?'),
        (["digits", "--cluster", "none"], 'unknown cluster "none"'),
        (["digits", "--cluster", "4x1gbe", "--workers", "1"], "1 worker: write --workers 2 or more"),
        (["digits", "--cluster", "4x1gbe", "--workers", "9"], "has room for 4 workers"),
        (["digits", "--cluster", "4x1gbe", "--measure", "0s"], "--measure 0s: write more than 0 s"),
        (["digits", "--cluster", "4x1gbe", "--measure", "60"], "--measure: "),
        (["digits", "--cluster", "4x1gbe", "--tolerance", "-1"], "--tolerance -1: write 0 or more points"),
        (["digits", "--cluster", "4x1gbe", "--failures", "often"], "--failures: "),
        (["digits", "--cluster", "4x1gbe", "--price", "-1"], "--price -1: write 0 or more"),
        (["digits", "--cluster", "4x1gbe", "--slow", "4:0.5"], "there is no rank 4"),
        (["digits", "--cluster", "4x1gbe", "--json", "none/a.json"], "there is no folder none"),
        (["none.py", "--cluster", "4x1gbe"], "there is no script none.py"),
        (["none.py", "--cluster", "4x1gbe", "--epochs", "2"], "--epochs is for a task"),
        (["digits", "--cluster", "4x1gbe", "--", "--lr", "1"], "only a script has arguments of its own"),
    ],
)
def test_what_cannot_be_asked_is_one_line(line: list[str], message: str, refused: Callable[[list[str]], str]):
    assert message in refused(["advise", *line])


def test_a_cluster_without_hosts_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cluster = tmp_path / "empty.toml"
    cluster.write_text('name = "empty"\n')
    assert invoke(["advise", "digits", "--cluster", str(cluster)]) == 2
    assert "hosts is missing" in capsys.readouterr().err


def test_a_target_that_is_never_reached_is_one_line(capsys: pytest.CaptureFixture[str]):
    line = ["advise", *TASK, *QUICK, "--cluster", "4x1gbe", "--workers", "2", "--epochs", "1", "--target", "0"]
    assert invoke(line) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("plesio: error: no strategy comes to the target within a run; the best comes to")


def test_ctrl_c_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from plesio.bench.advise import TaskRehearsal

    def interrupted(*others: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TaskRehearsal, "run", interrupted)
    assert invoke(["advise", *TASK, *QUICK, "--cluster", "4x1gbe", "--json", str(tmp_path / "a.json")]) == 130
    assert list(tmp_path.iterdir()) == []
