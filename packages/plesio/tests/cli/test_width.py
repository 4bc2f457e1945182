"""Output of commands fits lines of 80 characters; tests of those that measure look at it themselves."""

from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from support.narrow import narrow, too_long

RECIPE = """
task = { name = "quadratic", options = { dimension = 8, num_samples = 256 } }
run = { policies = ["bsp", "local_sgd:8,delay=4"], samples = 192, evaluate_every = 96, seeds = [0] }

[workers]
count = 2
cluster = "4x1gbe"
step_time = { kind = "constant", mean = "1 ms" }
"""
CHARACTERISE = """
run = { seeds = [0, 1], samples = 96, evaluate_every = 48 }

[workers]
count = 2
cluster = "4x1gbe"
step_time = { kind = "constant", mean = "1 ms" }

[models]
vgg = { name = "quadratic", options = { dimension = 8, num_samples = 256 } }

[[parts]]
name = "scaling"
world = "virtual"
policies = ["bsp", "asp"]
workers = [1, 2]
"""
NCCL = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor)
#  size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
1048576 262144  float    sum    -1 100.00  10.49  18.35      0  99.00  10.59  18.54      0
2097152 524288  float    sum    -1 150.00  13.98  24.47      0 149.00  14.07  24.63      0
4194304 1048576 float    sum    -1 250.00  16.78  29.36      0 249.00  16.84  29.48      0
"""
COMMANDS = [
    "list",
    "list policies",
    "list tasks",
    "list clusters",
    "list studies",
    "list bounds",
    "list statements A.7 A.15",
    "list chapter",
    "compare recipe.toml --out compare --world virtual",
    "simulate quadratic --policy bsp --epochs 1 --checkpoint saved --every 10steps; checkpoint show saved/bsp-seed0",
    "sweep recipe.toml --out sweep --target 30 --bounds 0,inf",
    "lab characterise characterise.toml --out characterise",
    "lab calibrate --nccl-tests nccl.txt",
    "lab testbed status",
    "bound checkpoint-interval",
    "bound grid",
    "study data-parallel",
    "study collectives",
    "estimate --model llama-3-8b --cluster 64xh100 --tokens 300B --failures",
]
FILES = {"recipe.toml": RECIPE, "characterise.toml": CHARACTERISE, "nccl.txt": NCCL}


@pytest.mark.parametrize("lines", COMMANDS)
def test_output_fits_80_columns(
    lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    narrow(monkeypatch)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    for line in lines.split("; "):
        assert invoke(line.split()) == 0
        out = capsys.readouterr().out
        assert out
        assert too_long(out) == []
