import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from plesio.bench.progress import ProgressSink, RunLabel, RunSnapshot
from plesio.bench.recipe import Recipe
from plesio.cli.commands import invoke
from plesio.core.results import Evaluation, RunResult, Staleness, WorkerTimes, write_results
from plesio.report.build import read_comparison
from plesio.report.sentences import policy_sentence

RunComparison = Callable[..., list[RunResult]]


def a_run(policy: str, *, seed: int, status: str = "finished") -> RunResult:
    times = WorkerTimes(
        worker=0, compute_s=1.0, wait_s=0.5, communicate_s=0.1, steps=10, samples=100, peak_memory_bytes=1000
    )
    return RunResult(
        policy=policy,
        task="digits",
        world="process",
        seed=seed,
        num_workers=1,
        status=status,
        error=None if status == "finished" else "worker 0 was lost",
        steps=10,
        samples=100,
        wall_s=1.6,
        samples_per_s=62.5,
        metric_name="accuracy",
        final_metric=0.97,
        workers=(times,),
        staleness=Staleness.of({0: 10}),
        evaluations=(Evaluation(samples=100, at_s=1.6, metric=0.97),),
    )


def tell(progress: ProgressSink, recipe: Recipe, *, failing: str | None = None) -> list[RunResult]:
    """The runs of a recipe, as a comparison would announce them."""
    pairs = [(policy, seed) for policy in recipe.run.policies for seed in recipe.run.seeds]
    results = []
    for number, (policy, seed) in enumerate(pairs, start=1):
        label = RunLabel(policy=policy, seed=seed, number=number, num_runs=len(pairs))
        progress.run_started(label, num_samples=100)
        progress.run_advanced(RunSnapshot(samples=50, step=5, samples_per_s=62.5, loss=0.5, mean_staleness=1.25))
        result = a_run(policy, seed=seed, status="failed" if policy == failing else "finished")
        (progress.run_failed if policy == failing else progress.run_finished)(result)
        results.append(result)
    return results


def no_failures(recipe: Recipe, *, out: Path, resume: bool, progress: ProgressSink, **where: object) -> list[RunResult]:
    results = tell(progress, recipe)
    write_results(out / "results.json", results)
    return results


@pytest.fixture
def replace_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunComparison], None]:
    """Puts a function in the place of the one that trains: here it is about what is round it."""

    def replace(function: RunComparison) -> None:
        module = ModuleType("plesio.bench.compare")
        module.run_comparison = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "plesio.bench.compare", module)

    return replace


@pytest.fixture
def recipe_path(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text('task.name = "digits"\nrun = { policies = ["bsp", "asp"], epochs = 1 }\nworkers.count = 2\n')
    return path


def test_compare_prints_the_table_and_the_reports_path_last(
    tmp_path: Path,
    recipe_path: Path,
    replace_training: Callable[[RunComparison], None],
    capsys: pytest.CaptureFixture[str],
):
    replace_training(no_failures)
    out = tmp_path / "new" / "folder"
    assert invoke(["compare", str(recipe_path), "--out", str(out)]) == 0
    printed, progress = capsys.readouterr()
    assert printed.splitlines()[-1] == str(out / "report.html")
    assert (out / "report.html").stat().st_size > 1000
    assert "accuracy" in printed.splitlines()[0]
    comparison = read_comparison(out)
    for summary in comparison.policies:
        assert policy_sentence(summary, comparison=comparison) in " ".join(printed.split())
    assert progress.splitlines() == [
        "[1/2] bsp · seed 0: started, 100 samples",
        "[1/2] bsp · seed 0: finished in 1.6 s, accuracy 0.97",
        "[2/2] asp · seed 0: started, 100 samples",
        "[2/2] asp · seed 0: finished in 1.6 s, accuracy 0.97",
    ]


def test_flags_choose_policies_and_seeds(
    tmp_path: Path, recipe_path: Path, replace_training: Callable[[RunComparison], None]
):
    seen: list[tuple[Recipe, bool]] = []

    def spy(recipe: Recipe, *, out: Path, resume: bool, progress: ProgressSink, **where: object) -> list[RunResult]:
        seen.append((recipe, resume))
        return no_failures(recipe, out=out, resume=resume, progress=progress)

    replace_training(spy)
    flags = ["--policies", "ssp:4, asp,weight=inverse,local_sgd:8,delay=4", "--seeds", "3,1", "--resume"]
    assert invoke(["compare", str(recipe_path), "--out", str(tmp_path / "out"), *flags]) == 0
    ((recipe, resume),) = seen
    assert recipe.run.policies == ("ssp:4", "asp,weight=inverse", "local_sgd:8,delay=4")
    assert recipe.run.seeds == (3, 1)
    assert resume


def test_a_failed_run_is_said_and_is_the_status(
    tmp_path: Path,
    recipe_path: Path,
    replace_training: Callable[[RunComparison], None],
    capsys: pytest.CaptureFixture[str],
):
    def one_fails(
        recipe: Recipe, *, out: Path, resume: bool, progress: ProgressSink, **where: object
    ) -> list[RunResult]:
        results = tell(progress, recipe, failing="asp")
        write_results(out / "results.json", results)
        return results

    replace_training(one_fails)
    assert invoke(["compare", str(recipe_path), "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert "[2/2] asp · seed 0: failed: worker 0 was lost\n" in err
    assert err.endswith("plesio: 1 of 2 runs did not finish; the report says why\n")


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path,
    recipe_path: Path,
    replace_training: Callable[[RunComparison], None],
    capsys: pytest.CaptureFixture[str],
):
    def interrupted(
        recipe: Recipe, *, out: Path, resume: bool, progress: ProgressSink, **where: object
    ) -> list[RunResult]:
        raise KeyboardInterrupt

    replace_training(interrupted)
    out = tmp_path / "out"
    assert invoke(["compare", str(recipe_path), "--out", str(out), "--seeds", "3,4", "--policies", "bsp"]) == 130
    assert f"plesio compare {recipe_path} --out {out} --policies bsp --seeds 3,4 --resume" in capsys.readouterr().err


def test_a_folder_in_use_is_kept_unless_told_otherwise(
    tmp_path: Path,
    recipe_path: Path,
    replace_training: Callable[[RunComparison], None],
    capsys: pytest.CaptureFixture[str],
):
    replace_training(no_failures)
    out = tmp_path / "out"
    (out / "runs" / "bsp-seed0").mkdir(parents=True)
    for name in ("results.json", "report.html", "notes.txt", "runs/bsp-seed0/trace-0.jsonl"):
        (out / name).write_text("old")
    assert invoke(["compare", str(recipe_path), "--out", str(out)]) == 2
    message = f"plesio: error: {out} is not empty: add --resume to go on there, or --overwrite to start anew\n"
    assert capsys.readouterr().err == message
    assert (out / "results.json").read_text() == "old"

    assert invoke(["compare", str(recipe_path), "--out", str(out), "--overwrite"]) == 0
    assert (out / "notes.txt").read_text() == "old"
    assert (out / "results.json").read_text() != "old"
    assert not (out / "runs").exists()
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "report.html", "results.json"]


def test_report_builds_the_page_again(
    tmp_path: Path,
    recipe_path: Path,
    replace_training: Callable[[RunComparison], None],
    capsys: pytest.CaptureFixture[str],
):
    replace_training(no_failures)
    out = tmp_path / "out"
    assert invoke(["compare", str(recipe_path), "--out", str(out)]) == 0
    page, printed = (out / "report.html").read_bytes(), capsys.readouterr().out
    (out / "report.html").unlink()
    assert invoke(["report", str(out)]) == 0
    assert capsys.readouterr().out == printed
    assert (out / "report.html").read_bytes() == page


@pytest.mark.parametrize("policy", ["diloco:6,fragments=2", "diloco:6,fragments=4"])
def test_a_policy_with_more_fragments_than_the_model_has_tensors_is_refused_in_one_line(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[task]\nname = "quadratic"\n[run]\npolicies = ["bsp"]\nsamples = 64\n'
        '[workers]\ncount = 2\nstep_time = { kind = "constant", mean = "10 ms" }\n',
        encoding="utf-8",
    )
    command = ["compare", str(recipe), "--out", str(tmp_path / "out"), "--world", "virtual", "--policies", policy]
    assert invoke(command) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert policy in line
