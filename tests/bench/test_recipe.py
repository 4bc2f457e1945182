import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from plesio.bench.recipe import Recipe, load_recipe
from plesio.core.clock import MonotonicClock
from plesio.core.errors import ConfigError
from plesio.runtime.pacing import Constant, EmpiricalTrace, Gamma, LogNormal, Pareto, Stalls

RECIPES = Path(__file__).parents[2] / "recipes"

GOOD = """
[task]
name = "digits"

[run]
policies = ["bsp", "ssp:4"]
seeds = [0, 1]
epochs = 2

[workers]
count = 4
step_time = { kind = "constant", mean = "20 ms" }

[[workers.unequal]]
rank = 3
speed = 0.5
"""


def load(folder: Path, text: str, **overrides: list[str] | list[int]) -> Recipe:
    path = folder / "recipe.toml"
    path.write_text(text)
    return load_recipe(path, **overrides)


def test_a_recipe_says_what_its_text_says(tmp_path: Path):
    recipe = load(tmp_path, GOOD)
    assert recipe.task.name == "digits"
    assert [policy.spec for policy in recipe.policies] == ["bsp", "ssp:4"]
    assert recipe.run.seeds == (0, 1)
    assert recipe.budget_samples(1437) == 2874
    assert recipe.run.evaluate_every is None
    slow, fast = (recipe.workers.pacer(rank, seed=1, clock=MonotonicClock()) for rank in (3, 0))
    assert (slow.draw_s(0), fast.draw_s(0)) == (0.04, 0.02)
    assert (slow.seed, slow.worker) == (1, 3)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_recipes_of_the_project_are_valid(path: Path):
    recipe = load_recipe(path)
    assert recipe.policies
    assert all(recipe.workers.pacer(rank, seed=0, clock=MonotonicClock()) for rank in range(recipe.workers.count))


def test_a_recipe_survives_the_way_to_a_worker(tmp_path: Path):
    recipe = load(tmp_path, GOOD)
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_every_kind_of_step_time_is_read(tmp_path: Path):
    (tmp_path / "steps.txt").write_text("10 ms\n20 ms\n")
    text = GOOD.replace("count = 4", "count = 6").replace("rank = 3\nspeed = 0.5", "rank = 5")
    tables = {
        "lognormal": ('{ kind = "lognormal", mean = "1 s", cv = 1 }', LogNormal(mean_s=1.0, cv=1)),
        "gamma": ('{ kind = "gamma", mean = "1 s", cv = 0.5 }', Gamma(mean_s=1.0, cv=0.5)),
        "pareto": ('{ kind = "pareto", min = "5 ms", shape = 2.5 }', Pareto(min_s=0.005, shape=2.5)),
        "trace": ('{ kind = "trace", path = "steps.txt" }', EmpiricalTrace(durations_s=(0.01, 0.02))),
    }
    for rank, (table, _) in enumerate(tables.values()):
        text += f"\n[[workers.unequal]]\nrank = {rank}\nstep_time = {table}\n"
    workers = load(tmp_path, text).workers
    pacers = [workers.pacer(rank, seed=0, clock=MonotonicClock()) for rank in range(6)]
    assert [pacer.step_time for pacer in pacers[:4]] == [expected for _, expected in tables.values()]
    assert pacers[4].step_time == pacers[5].step_time == Constant(mean_s=0.02)


def test_stalls_are_on_every_worker_and_need_step_times(tmp_path: Path):
    text = GOOD.replace("count = 4", "count = 4\nstalls = { probability = 0.1, factor = 5 }")
    pacer = load(tmp_path, text).workers.pacer(1, seed=0, clock=MonotonicClock())
    assert pacer is not None
    assert pacer.step_time == Stalls(steps=Constant(mean_s=0.02), probability=0.1, factor=5.0)
    for old, new, message in (
        ("0.1", "1.5", "probability is 1.5"),
        ("factor = 5", "factor = 0.5", "factor is 0.5"),
        ("factor = 5", "times = 5", "unknown key"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(tmp_path, text.replace(old, new))


def test_without_a_step_time_nobody_is_paced(tmp_path: Path):
    text = GOOD.split("step_time")[0]
    assert load(tmp_path, text).workers.pacer(0, seed=0, clock=MonotonicClock()) is None


def test_a_length_in_samples_is_taken_as_it_is(tmp_path: Path):
    assert load(tmp_path, GOOD.replace("epochs = 2", "samples = 500")).budget_samples(1437) == 500


def test_a_task_file_is_found_beside_the_recipe(tmp_path: Path):
    recipe = load(tmp_path, GOOD.replace('"digits"', '"sub/mine.py:make"'))
    assert recipe.task.name == f"{tmp_path.resolve()}/sub/mine.py:make"
    assert load(tmp_path, GOOD.replace('"digits"', '"my.module:make"')).task.name == "my.module:make"


def test_flags_take_the_place_of_the_files_values(tmp_path: Path):
    recipe = load(tmp_path, GOOD, policies=["ASP"], seeds=[7])
    assert recipe.run.policies == ("asp",)
    assert recipe.run.seeds == (7,)


def test_a_bad_flag_is_blamed_on_the_flag(tmp_path: Path):
    with pytest.raises(ConfigError, match=r'^--policies: unknown policy "sps"; did you mean "ssp"\?$'):
        load(tmp_path, GOOD, policies=["sps:4"])
    with pytest.raises(ConfigError, match=r"^--seeds is -1; write 0 or more$"):
        load(tmp_path, GOOD, seeds=[-1])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 2", "epocs = 2", 'run: unknown key "epocs"; did you mean "epochs"?'),
        ("[task]", "[tsak]", 'unknown key "tsak"; did you mean "task"?'),
        ("mean =", "maen =", 'workers.step_time: unknown key "maen"; did you mean "mean"?'),
        ("rank = 3", "rnak = 3", 'workers.unequal[0]: unknown key "rnak"; did you mean "rank"?'),
        ("epochs = 2", "", 'run: a run\'s length is "epochs" or "samples"; neither is given: write one of them'),
        (
            "epochs = 2",
            "epochs = 2\nsamples = 3",
            'run: a run\'s length is "epochs" or "samples"; both are given: write one of them',
        ),
        ("epochs = 2", "epochs = 0", "run.epochs is 0; write more than 0"),
        ("epochs = 2", "epochs = inf", "run.epochs is inf; write a finite number"),
        ("epochs = 2", 'epochs = "2"', "run.epochs is '2'; write a number"),
        ("count = 4", "count = 0", "workers.count is 0; write 1 or more"),
        ("count = 4", "count = 2.5", "workers.count is 2.5; write a whole number"),
        ("count = 4", "", "workers.count is missing"),
        ('["bsp", "ssp:4"]', "[]", "run.policies is empty; write one or more"),
        ('["bsp", "ssp:4"]', '"bsp"', "run.policies is 'bsp'; write a list in [ ]"),
        ('["bsp", "ssp:4"]', '["bsp", "sps:4"]', 'run.policies[1]: unknown policy "sps"; did you mean "ssp"?'),
        ('["bsp", "ssp:4"]', '["bsp", "BSP"]', "run.policies: bsp is there 2 times; write it once"),
        ("[0, 1]", "[]", "run.seeds is empty; write one or more"),
        ("[0, 1]", "[1, 1]", "run.seeds: 1 is there 2 times; write it once"),
        ("[0, 1]", "[-1]", "run.seeds[0] is -1; write 0 or more"),
        (
            '"digits"',
            '"digit"',
            'task.name: there is no task "digit"; did you mean "digits"? '
            '(your own is written "module:attribute" or "file.py:attribute")',
        ),
        ('"20 ms"', "20", 'workers.step_time.mean: 20 has no unit; write it as in "20 ms"'),
        ('"20 ms"', '"20 parsecs"', 'workers.step_time.mean: "20 parsecs" is not a duration'),
        ('"constant"', '"constnat"', 'workers.step_time has the unknown kind "constnat"; did you mean "constant"?'),
        ('kind = "constant", ', "", 'workers.step_time has no kind; write one, as in { kind = "constant"'),
        (
            '{ kind = "constant", mean = "20 ms" }',
            '{ kind = "trace", path = "none.txt" }',
            "workers.step_time: cannot read the step-time trace",
        ),
        (
            '{ kind = "constant", mean = "20 ms" }',
            '{ kind = "pareto", min = "20 ms", shape = 1 }',
            "workers.step_time: shape is 1; write more than 1",
        ),
        ("rank = 3", "rank = 4", "workers: there is no rank 4 among 4 workers (0 is the first)"),
        (
            "rank = 3",
            "rank = 3\n[[workers.unequal]]\nrank = 3",
            "workers: rank 3 has two [[workers.unequal]] tables; write one",
        ),
        (
            'step_time = { kind = "constant", mean = "20 ms" }',
            "",
            'workers: rank 3 has a speed but no step time; write "step_time" under [workers]',
        ),
        ("speed = 0.5", "speed = 0", "workers.unequal[0].speed is 0; write more than 0"),
        ("count = 4", "count = = 4", "not valid TOML: Invalid value (at line 11, column 9)"),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_what_to_write(tmp_path: Path, old: str, new: str, message: str):
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(str(tmp_path / "recipe.toml"))
    assert message in said
    assert said.count("\n") == 0


def test_many_mistakes_still_take_two_lines(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "")
    assert str(caught.value).endswith("recipe.toml: task is missing\n(and 2 more)")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no recipe .*/none\.toml"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot read the recipe .*Is a directory"):
        load_recipe(tmp_path)


def test_reading_a_recipe_does_not_import_torch():
    code = "import sys, plesio.bench.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
