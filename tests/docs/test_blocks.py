"""Blocks of code on the pages do as they stand: Python runs, TOML is taken."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from plesio.bench.recipe import make_recipe
from plesio.cost.cluster import parse_cluster

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "log.md")]
ELSEWHERE = {
    "--8<--": "tests/examples",
    "import argparse": "test_site.py: the tutorial's program",
    "plesio.integrations": "packages/plesio/tests/integrations: a framework takes a process for itself",
    "torch.distributed.checkpoint": "packages/plesio/tests/runtime/checkpoints/test_mistakes.py",
    "mine.pt": "packages/plesio/tests/runtime/checkpoints/test_state_dict.py",
    "callbacks.MLflow": "packages/plesio/tests/runtime/test_callbacks.py",
    "plesio.Job(place)": "packages/plesio/tests/runtime/test_start.py",
    "    ...,\n": "a part of a call",
}
"""A part of a block that does not run here, and where it does."""
GIVEN = """
import contextlib
import torch
import plesio
from pathlib import Path
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

epochs = 2
data = held_out = TensorDataset(torch.randn(32, 8), torch.zeros(32, dtype=torch.long))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer = build()
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
loss = metric = lambda model: 0.005
accuracy = lambda model, held_out: (model(held_out.tensors[0]).argmax(1) == held_out.tensors[1]).float().mean().item()
"""
TRACED = """
import plesio.runtime.worlds.virtual
from plesio.cost.cluster import parse_cluster

def work(job):
    model, optimizer = build()
    with plesio.join(model, optimizer, policy="asp", trace="runs/mine") as session:
        for x, y in session.shard(loader):
            F.cross_entropy(model(x), y).backward()
            session.step()

plesio.runtime.worlds.virtual.simulate(work, num_workers=2, cluster=parse_cluster("laptop"))
"""
"""Traces that some blocks read."""
OPEN = """
with plesio.join(model, optimizer) as session:
    for epoch in range(1):
{block}
"""
"""A session in whose midst a block is that begins none."""
CLUSTER = "hosts = 4\nnic = { latency = '50 us', bandwidth = '1 Gbit/s' }\n"
RECIPE = {"task": {"name": "digits"}, "run": {"policies": ["asp"], "epochs": 1}, "workers": {"count": 4}}


def blocks(language: str) -> list[tuple[str, str]]:
    """Each block with its page and its number there."""
    pattern = re.compile(rf"^( *)```{language}[^\n]*\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
    return [
        (f"{page.relative_to(ROOT)}:{number}", textwrap.dedent(block))
        for page in PAGES
        for number, (_, block) in enumerate(pattern.findall(page.read_text(encoding="utf-8")))
    ]


PYTHON = [
    pytest.param(block, id=name) for name, block in blocks("python") if not any(part in block for part in ELSEWHERE)
]
TOML = [pytest.param(block, id=name) for name, block in blocks("toml")]


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("block", PYTHON)
def test_python_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    given = GIVEN + (TRACED if "runs/mine" in block else "")
    if "session" in block and "plesio.join(" not in block:
        block = OPEN.format(block=textwrap.indent(block, " " * 8))
    exec(compile(given + block, "block", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("block", TOML)
def test_toml_is_taken(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tables = tomllib.loads(block)
    if {*tables} & {"hosts", "changes", "failures"} and "faults" not in tables:
        (tmp_path / "mine.toml").write_text(block if "hosts" in tables else CLUSTER + block)
        parse_cluster("mine.toml")
        return
    (tmp_path / "steps.txt").write_text("20 ms\n30 ms\n")
    if "faults" in tables:  # keys of [workers]
        tables = {"workers": {"cluster": "4x1gbe", **tables}}
    merged = {name: {**RECIPE.get(name, {}), **tables.get(name, {})} for name in {*RECIPE, *tables}}
    make_recipe(merged, folder=tmp_path, where="mine.toml")


def test_there_are_many():
    assert len(PYTHON) > 20
    assert len(TOML) > 10
