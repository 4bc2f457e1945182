"""`plesio report` on folders as runs and comparisons leave them; nothing is trained."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.results import RunResult, write_results
from plesio.policies import EventLog, Reviewed, Steer, parse_policy, write_log
from plesio.policies.replay import LogEntry
from support.narrow import narrow, too_long


def a_run(policy: str, seed: int, *, wall_s: float = 0.6) -> RunResult:
    return RunResult(
        policy=policy, task="digits", world="virtual", seed=seed, num_workers=1, status="finished", steps=30,
        samples=960, wall_s=wall_s, bytes_sent_total=1000,
    )  # fmt: skip


def record(folder: Path, run: RunResult) -> None:
    """Write a run's trace folder: under an adaptive policy a change after step 5."""
    review = Reviewed(worker=0, clock=3, samples=(32,) * 3, compute_s=(0.01,) * 3, blocked_s=(0.03,) * 3)
    answer = Steer(
        clock=5, before="bsp", policy="local_sgd:4", next_review=20, next_clock=24, reason=f"seed {run.seed} is slow",
        inputs=(("bsp.step_s", 0.04),),
    )  # fmt: skip
    policy = parse_policy(run.policy)
    entries = (LogEntry(event=review, actions=(answer,)),) if policy.adapts else ()
    folder.mkdir(parents=True)
    write_log(folder / "events.jsonl", EventLog(policy=policy, entries=entries))
    write_results(folder / "results.json", [run])


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    runs = [a_run("bsp", 0, wall_s=1.2), *(a_run(policy, seed) for policy in VARIANTS for seed in (0, 1))]
    for number, run in enumerate(runs):
        record(tmp_path / "runs" / f"run{number}", run)
    write_results(tmp_path / "results.json", runs)
    (tmp_path / "setting.json").touch()
    return tmp_path


VARIANTS = ("adaptive", "adaptive,store=off")


def test_the_first_adaptive_run_is_told_and_how_to_choose_others(comparison: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["report", str(comparison)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("policy seeds time (s)")
    assert "digits under adaptive, seed 0, 1 worker in the virtual world: 1 change in 30 steps, 600 ms." in text
    assert "it went from bsp to local_sgd:4, because seed 0 is slow." in text
    assert re.search(r"the whole run +600 ms +1.2 s +0.50x", text)
    assert text.index("Whether it learned as well as bsp is not known: it took 0.50x bsp's time") < text.index(
        "It began"
    )
    assert (
        "3 other runs to explain here: --seed 1 | --policy adaptive,store=off --seed 0 | "
        "--policy adaptive,store=off --seed 1"
    ) in text
    assert text.endswith(f"{comparison}/report.html {comparison}/explain.html")
    assert "adaptive, seed 0" in (comparison / "report.html").read_text(encoding="utf-8")
    assert "seed 0 is slow" in (comparison / "explain.html").read_text(encoding="utf-8")


def test_what_is_told_fits_80_columns(
    comparison: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    narrow(monkeypatch)
    assert invoke(["report", str(comparison)]) == 0
    out = capsys.readouterr().out
    assert "the whole run" in out
    assert too_long(out) == []


def test_another_run_is_chosen_by_policy_and_seed(comparison: Path, capsys: pytest.CaptureFixture[str]):
    page, data = comparison / "one.html", comparison / "one.json"
    line = ["report", str(comparison), "--policy", "adaptive,store=off", "--seed", "1"]
    assert invoke([*line, "--page", str(page), "--json", str(data)]) == 0
    out = capsys.readouterr().out
    assert "digits under adaptive,store=off, seed 1" in out
    assert "the whole run" not in out  # bsp was not run with this seed
    told = " ".join(out.split())
    assert f"--out {comparison} --resume --policies bsp,adaptive,store=off --seeds 1 --world virtual" in told
    assert "or, without a recipe, write plesio simulate TASK --policy bsp --seed 1 --out B with the other" in told
    assert out.endswith(f"{page}\n{data}\n")
    values = json.loads(data.read_text(encoding="utf-8"))
    assert [one["policy"] for one in values["policies"]] == ["bsp", *VARIANTS]
    explanation = values["explanation"]
    assert (explanation["policy"], explanation["seed"], explanation["chapters"][1]["policy"]) == (
        "adaptive,store=off",
        1,
        "local_sgd:4",
    )
    assert not (comparison / "explain.html").exists()


def test_a_runs_own_folder_is_enough(comparison: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["report", str(comparison / "runs" / "run2")]) == 0
    out = capsys.readouterr().out
    assert "digits under adaptive, seed 1" in out
    assert "to explain here" not in out


def test_bsp_is_found_in_the_comparison_that_a_run_is_of(comparison: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["report", str(comparison / "runs" / "run1")]) == 0
    assert "the whole run" in capsys.readouterr().out


def test_bsp_with_other_workers_is_none(
    comparison: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
):
    other = tmp_path_factory.mktemp("other") / "bsp"
    record(other, dataclasses.replace(a_run("bsp", 0), num_workers=2))
    error = complaint(["report", str(comparison), "--bsp", str(other)], capsys)
    assert "has no finished run of bsp on digits with 1 workers and seed 0" in error


def test_a_comparison_that_changes_nothing_is_told_as_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_results(tmp_path / "results.json", [a_run("bsp", 0, wall_s=1.2), a_run("asp", 0)])
    assert invoke(["report", str(tmp_path), "--json", str(tmp_path / "numbers.json")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^asp +1/1 +0.6", out, re.MULTILINE)
    assert out.endswith(f"{tmp_path}/report.html\n{tmp_path}/numbers.json\n")
    values = json.loads((tmp_path / "numbers.json").read_text())
    assert (values["policies"][1]["time_s"]["mean"], values["explanation"]) == (0.6, None)
    assert not (tmp_path / "explain.html").exists()


def test_an_adaptive_run_without_events_is_told_without_its_explanation(
    comparison: Path, capsys: pytest.CaptureFixture[str]
):
    (comparison / "runs" / "run1" / "events.jsonl").unlink()
    assert invoke(["report", str(comparison)]) == 0
    out = capsys.readouterr().out
    assert "has no events of adaptive, seed 0: events.jsonl is missing" in out
    assert out.endswith(f"{comparison}/report.html\n")


def test_a_run_by_itself_is_held_against_bsp_in_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, run in (("own", a_run("adaptive", 3)), ("bsp", a_run("bsp", 3)), ("wrong", a_run("bsp", 4))):
        record(tmp_path / name, run)
    line = ["report", str(tmp_path / "own")]
    assert invoke(line) == 0
    alone = " ".join(capsys.readouterr().out.split())
    assert "Whether this run did better or worse than bsp is not known" in alone
    assert "What is predicted for bsp below is the time of its steps, not what they would have learned" in alone
    assert f"plesio report {tmp_path}/own --bsp B" in alone
    assert "compare" not in alone  # it is of no comparison
    assert "write plesio simulate SCRIPT --policy bsp --seed 3 --out B with the other options as they were" in alone
    assert invoke([*line, "--bsp", str(tmp_path / "bsp")]) == 0
    assert re.search(r"the whole run +600 ms +600 ms +1.00x", capsys.readouterr().out)
    assert (
        "has no finished run of bsp on digits with 1 workers and seed 3 in the virtual world; it has bsp, seed 4"
        in (complaint([*line, "--bsp", str(tmp_path / "wrong")], capsys))
    )
    assert "does not exist" in complaint([*line, "--bsp", str(tmp_path / "none")], capsys)


def test_a_simulated_script_has_no_recipe(comparison: Path, capsys: pytest.CaptureFixture[str]):
    (comparison / "setting.json").unlink()
    assert invoke(["report", str(comparison), "--seed", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "compare" not in out
    assert "write plesio simulate SCRIPT --policy bsp --seed 1 --out B with the other options as they were" in out
    assert f"and then plesio report {comparison} --bsp B." in out


def test_a_script_on_processes_is_run_under_bsp_by_its_own_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record(tmp_path / "own", dataclasses.replace(a_run("adaptive", 3), world="process"))
    assert invoke(["report", str(tmp_path / "own")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert 'run the script with plesio.join(..., policy="bsp", trace="B"), and write plesio report' in out


def complaint(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert invoke(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_mistakes_are_one_line_that_says_what_works(comparison: Path, capsys: pytest.CaptureFixture[str]):
    here = str(comparison)
    static = complaint(["report", str(comparison / "runs" / "run0"), "--seed", "0"], capsys)
    assert (
        "changes while it trains (bsp); explain a run of adaptive or switch: plesio compare RECIPE --out DIR" in static
    )
    assert "has no run with seed 7; it has adaptive, seed 0;" in complaint(["report", here, "--seed", "7"], capsys)
    assert "--policy ssp:4 changes nothing while it trains; write one of adaptive or switch" in complaint(
        ["report", here, "--policy", "ssp:4"], capsys
    )
    assert 'did you mean "adaptive"?' in complaint(["report", here, "--policy", "adaptiv"], capsys)
    assert "does not exist" in complaint(["report", f"{here}/none"], capsys)
    assert "results.json/x/results.json does not exist" in complaint(["report", f"{here}/results.json/x"], capsys)
    assert "there is no folder" in complaint(["report", here, "--page", f"{here}/none/x.html"], capsys)
    assert "is a folder; write a file's name" in complaint(["report", here, "--json", here], capsys)
    (comparison / "runs" / "run1" / "events.jsonl").unlink()
    assert "has no events of adaptive, seed 0: events.jsonl is missing" in complaint(
        ["report", here, "--seed", "0"], capsys
    )
    assert not (comparison / "explain.html").exists()


def test_a_explanation_is_told_without_torch(comparison: Path):
    code = f"""
import sys
from plesio.cli.commands import invoke
sys.exit(invoke(["report", {str(comparison)!r}]) or "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
