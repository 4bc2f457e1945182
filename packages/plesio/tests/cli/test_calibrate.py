import json
from pathlib import Path

import pytest

from plesio.bench import calibrate as calibrating
from plesio.cli.commands import invoke
from plesio.core.results import read_results
from plesio.cost.calibration import Calibration
from support.narrow import narrow, too_long

NCCL = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor)
#  size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
1048576 262144  float    sum    -1 100.00  10.49  18.35      0  99.00  10.59  18.54      0
2097152 524288  float    sum    -1 150.00  13.98  24.47      0 149.00  14.07  24.63      0
4194304 1048576 float    sum    -1 250.00  16.78  29.36      0 249.00  16.84  29.48      0
"""


def test_measures_a_machine_that_the_virtual_world_can_then_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(calibrating, "REPEATS", 5)
    monkeypatch.setattr(calibrating, "GRADIENT_S", 0.05)
    monkeypatch.setattr(calibrating, "ALL_REDUCE_BYTES", (2**12, 2**16, 2**20))
    monkeypatch.setattr(calibrating, "MODEL_SCALES", (1, 64, 4096))
    monkeypatch.setattr(calibrating, "NUM_SERVERS", 2)  # each imports torch
    out = tmp_path / "calibration.json"
    narrow(monkeypatch)
    assert invoke(["lab", "calibrate", "quadratic", "--workers", "2", "--out", str(out)]) == 0
    calibration = Calibration.read(out)
    assert (calibration.task, calibration.num_workers, calibration.batch_size) == ("quadratic", 2, 16)
    assert 0 < calibration.cores <= calibration.num_cores
    assert [size for size, _ in calibration.gradient.points] == [4, 8, 16, 32, 64]
    assert [size for size, _ in calibration.all_reduce.points] == [2**12, 2**16, 2**20]
    assert all(0 < value < 60 for _, value in (*calibration.worker.points, *calibration.server.points))
    assert calibration.memory.points[0][1] > 50e6
    told = capsys.readouterr().out
    assert "peak memory" in told
    assert too_long(told) == []

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[task]\nname = "quadratic"\n[run]\npolicies = ["bsp", "asp"]\nseeds = [0]\nepochs = 1\n[workers]\ncount = 2\n'
    )
    line = f"compare {recipe} --world virtual --calibration {out} --out {tmp_path / 'runs'}"
    assert invoke(line.split()) == 0
    for run in read_results(tmp_path / "runs" / "results.json"):
        assert run.status == "finished"
        # nobody said how long a step takes: the calibration does
        assert run.wall_s > run.steps / 2 * calibration.gradient.fit.at(16)


def test_fits_links_to_what_nccl_tests_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "all_reduce.txt"
    path.write_text(NCCL)
    assert invoke(["lab", "calibrate", "--nccl-tests", str(path)]) == 0
    text = capsys.readouterr().out
    assert "3 sizes, 8 ranks, not complete." in text
    # 50 µs and 1 / (20.97 GB/s) in all: 2 x 7 steps of 3.57 µs, and 36.7 GB/s a link
    assert 'latency = "3.57 us"' in text
    assert 'bandwidth = "36.7 GB/s"' in text


def test_takes_step_times_from_a_profilers_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": n * 3e4, "dur": d}
        for n, d in enumerate((20_000, 21_000, 29_000))
    ]
    trace, steps = tmp_path / "trace.json", tmp_path / "steps.txt"
    trace.write_text(json.dumps({"traceEvents": events}))
    assert invoke(["lab", "calibrate", "--kineto", str(trace), "--out", str(steps)]) == 0
    assert "3 steps, median 21 ms" in capsys.readouterr().out
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[task]\nname = "quadratic"\n[run]\npolicies = ["bsp"]\nseeds = [0]\nsamples = 320\n[workers]\ncount = 2\n'
        'step_time = { kind = "trace", path = "steps.txt" }\n'
    )
    assert invoke(f"compare {recipe} --world virtual --out {tmp_path / 'runs'}".split()) == 0
    [run] = read_results(tmp_path / "runs" / "results.json")
    assert 10 * 0.02 < run.wall_s < 10 * 0.03


def test_ranks_that_the_rows_contradict_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "all_reduce.txt"
    path.write_text(NCCL.replace("nGpus 8", "nGpus 2"))
    assert invoke(["lab", "calibrate", "--nccl-tests", str(path)]) == 2
    assert "lists 2 ranks, but its busbw is 1.75 times its algbw" in capsys.readouterr().err


def test_what_is_in_a_folder_is_not_removed_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kept = tmp_path / "results.json"
    run = tmp_path / "process" / "trace-0.jsonl"
    run.parent.mkdir()
    for file in (kept, run):
        file.write_text("precious")
    for line in (
        f"simulate quadratic --epochs 1 --out {tmp_path}",
        f"lab validate --policies bsp --seeds 0 --out {tmp_path}",
        f"simulate quadratic --step-time 3 --overwrite --out {tmp_path}",
        f"lab validate --policies nope --overwrite --out {tmp_path}",
        f"lab validate --seeds=-1 --overwrite --out {tmp_path}",
        f"lab validate --seeds 0,0 --overwrite --out {tmp_path}",
    ):
        assert invoke(line.split()) == 2
        assert kept.read_text() == run.read_text() == "precious"
    assert "--overwrite" in capsys.readouterr().err


def test_batches_with_no_sizes_around_them_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = f"lab calibrate quadratic --batch-size 4096 --workers 2 --out {tmp_path / 'out'}"
    assert invoke(line.split()) == 2
    assert "batches of 4096 samples cannot be calibrated" in capsys.readouterr().err
