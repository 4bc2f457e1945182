import pickle
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from plesio.bench.recipe import Recipe, load_recipe, make_task_section, make_workers
from plesio.bench.recipe_workers import WorkersSection
from plesio.bench.trainer import section_task
from plesio.core.clock import MonotonicClock
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.faults import Failures, Fault, faults_in_order
from plesio.cost.step_time import Constant, EmpiricalTrace, Gamma, LogNormal, Pareto, Stalls
from plesio.policies import Adaptive

RECIPES = Path(__file__).parents[4] / "recipes"

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


TWO_RACKS = """
hosts = 4
racks = 2
nic = { latency = "50 us", bandwidth = "1 Gbit/s" }
uplink = { latency = "10 us", bandwidth = "1 Gbit/s" }
"""

FAULTS = """
[[workers.faults]]
at = "3 s"
kind = "lose"
worker = 4

[[workers.faults]]
at = "2 s"
kind = "join"
"""


def fault(*, at: str = "1 s", kind: str = "lose", worker: int = 1) -> str:
    return f'faults = [{{ at = "{at}", kind = "{kind}", worker = {worker} }}]'


def load(folder: Path, text: str, **overrides: Any) -> Recipe:
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


ADAPTIVE = """
[adaptive]
gain = 0.2
store = "off"
balance = false
"""


def test_the_adaptive_table_says_what_adaptive_stands_for(tmp_path: Path):
    text = GOOD.replace('"ssp:4"', '"adaptive"') + ADAPTIVE
    (tmp_path / "recipe.toml").write_text(text)
    recipe = load_recipe(tmp_path / "recipe.toml")
    [_, policy] = recipe.policies
    assert policy == Adaptive(gain=0.2, store=False, balance=False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gane = 0.2", 'unknown key "gane"; did you mean "gain"'),
        ('gain = "0.2"', "gain is '0.2'; write a number of 0 or more"),
        ("gain = true", "gain is True; write a number"),
        ('guard = "of"', 'guard is \'of\'; write "on" or "off"'),
        ('guard = "off,gain=3"', "guard is 'off,gain=3'; write"),
    ],
)
def test_a_mistake_in_the_adaptive_table_is_named(tmp_path: Path, line: str, words: str):
    (tmp_path / "recipe.toml").write_text(GOOD + ADAPTIVE.replace("gain = 0.2", line))
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_recipe(tmp_path / "recipe.toml")


def test_adaptive_is_among_the_known_tables(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(GOOD + "[zebra]\n")
    with pytest.raises(ConfigError, match="known: adaptive, checkpoint, run, task, workers"):
        load_recipe(tmp_path / "recipe.toml")


COMPARISONS = sorted(path for path in RECIPES.glob("*.toml") if path.stem != "characterise")  # it has a test of its own


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_the_recipes_of_the_project_are_valid(path: Path):
    recipe = load_recipe(path)
    assert recipe.policies
    for rank in range(recipe.workers.count):
        paced = recipe.workers.pacer(rank, seed=0, clock=MonotonicClock()) is not None
        assert paced == (recipe.workers.step_time_of(rank) is not None)


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


SLOWDOWNS = 'slowdowns = { factor = 3, every = "2 s", lasting = "1 s"'
MOMENTS = [0.1 * number for number in range(1000)]


def slow_moments(workers: WorkersSection, rank: int) -> list[float]:
    slowdowns = workers.pacer(rank, seed=0, clock=MonotonicClock()).slowdowns
    return [] if slowdowns is None else [at_s for at_s in MOMENTS if slowdowns.factor_at(at_s) == 3.0]


@pytest.mark.parametrize(
    ("lines", "racks"),
    [
        (f"{SLOWDOWNS}, racks = [[0, 2], [1]] }}", [{0, 2, 4}, {1, 5}, {3}]),  # 3 is in none; 4 and 5 join late
        (f"{SLOWDOWNS} }}", [{0, 1, 2, 3, 4, 5}]),
        (f'cluster = "two.toml"\n{SLOWDOWNS} }}', [{0, 1, 4, 5}, {2, 3}]),
    ],
)
def test_workers_of_a_rack_are_slow_together(tmp_path: Path, lines: str, racks: list[set[int]]):
    (tmp_path / "two.toml").write_text(TWO_RACKS)
    workers = load(tmp_path, GOOD.replace("count = 4", f"count = 4\n{lines}")).workers
    seen = [slow_moments(workers, rank) for rank in range(6)]
    for rack in racks:
        assert len({tuple(seen[rank]) for rank in rack}) == 1
    assert len({tuple(moments) for moments in seen}) == len(racks)
    assert bool(seen[3]) == ("racks" not in lines)


@pytest.mark.parametrize("change", ['at_step = 3, kind = "lose"', 'at = "1 s", kind = "cut"'])
def test_faults_for_a_testbed_are_refused_in_the_virtual_world(tmp_path: Path, change: str):
    text = GOOD.replace("count = 4", f"count = 4\nfaults = [{{ {change}, worker = 1 }}]")
    workers = load(tmp_path, text).workers
    with pytest.raises(ConfigError, match="are for a testbed: --world testbed"):
        workers.faults_in_order(seed=0)


def test_faults_are_read_and_put_in_order(tmp_path: Path):
    text = GOOD.replace("bsp", "asp") + FAULTS
    workers = load(tmp_path, text).workers
    assert workers.any_faults
    expected = [Fault(at_s=2.0, kind="join"), Fault(at_s=3.0, kind="lose", worker=4)]
    assert list(workers.faults_in_order(seed=0)) == expected
    text += '[workers.failures]\nmtbf = "1 min"\nshape = 0.7\nrejoin_after = "5 s"\n'
    workers = load(tmp_path, text).workers
    first = list(islice(workers.faults_in_order(seed=3), 20))
    failures = Failures(mtbf_s=60.0, shape=0.7, rejoin_after_s=5.0)
    assert first == list(islice(faults_in_order(4, given=expected, failures=failures, seed=3), 20))
    assert not load(tmp_path, GOOD).workers.any_faults


def test_a_cluster_is_named_or_in_a_file_beside_the_recipe_or_given(tmp_path: Path):
    (tmp_path / "two.toml").write_text(TWO_RACKS)
    named, own = (
        load(tmp_path, GOOD.replace("count = 4", f'count = 4\ncluster = "{cluster}"'))
        for cluster in ("16x1gbe", "two.toml")
    )
    assert named.workers.cluster == parse_cluster("16x1gbe")
    assert own.workers.cluster == Cluster.from_toml(TWO_RACKS, name="two")
    assert pickle.loads(pickle.dumps(own)) == own
    other = load_recipe(tmp_path / "recipe.toml", workers={"cluster": parse_cluster("4x1gbe")})
    assert other.workers.cluster == parse_cluster("4x1gbe")
    assert load(tmp_path, GOOD).workers.cluster is None
    (tmp_path / "recipe.toml").write_text(GOOD.replace("count = 4", "count = 5"))
    with pytest.raises(ConfigError, match=r"^--cluster: cluster 4x1gbe has room for 4 workers"):
        load_recipe(tmp_path / "recipe.toml", workers={"cluster": parse_cluster("4x1gbe")})


def test_workers_alone_are_read_as_in_a_recipe(tmp_path: Path):
    step_time = {"kind": "constant", "mean": "20 ms"}
    workers = make_workers({"count": 4, "step_time": step_time}, folder=tmp_path, where="here")
    assert workers.pacer(2, seed=0, clock=MonotonicClock()).draw_s(0) == 0.02
    with pytest.raises(ConfigError, match=r"^here: workers\.count is 0; write 1 or more$"):
        make_workers({"count": 0}, folder=tmp_path, where="here")


def test_a_task_alone_is_read_as_in_a_recipe():
    assert make_task_section("digits", batch_size=8).batch_size == 8
    with pytest.raises(ConfigError, match=r'^task\.name: there is no task "digit"; did you mean "digits"\?'):
        make_task_section("digit")


def test_a_script_is_no_task():
    section = make_task_section("train.py")
    assert section.is_script
    with pytest.raises(ConfigError, match=r"train\.py is a script; a task is needed here, as in train\.py:task$"):
        section_task(section)


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
        ("count = 4", f"count = 4\n{SLOWDOWNS}, racks = [[0, 4]] }}", "workers: there is no rank 4 among 4 workers"),
        ("count = 4", f"count = 4\n{SLOWDOWNS}, racks = [[0], [0]] }}", "workers.slowdowns: rank 0 is in the racks 2"),
        ("count = 4", f"count = 4\n{SLOWDOWNS}, racks = [[0.5]] }}", "racks[0][0] is 0.5; write a whole number"),
        ("count = 4", f"count = 4\n{SLOWDOWNS}, racks = [[]] }}", "workers.slowdowns.racks[0] is empty"),
        (
            "count = 4",
            'count = 4\nslowdowns = { factor = 0.5, every = "1 s", lasting = "1 s" }',
            "workers.slowdowns: factor is 0.5; write 1 or more",
        ),
        (
            'step_time = { kind = "constant", mean = "20 ms" }',
            f"{SLOWDOWNS} }}",
            'workers: slowdowns lengthen step times, and there are none; write "step_time" under [workers]',
        ),
        ("count = 4", 'count = 4\ncluster = "5x1gbe"', 'workers.cluster: unknown cluster "5x1gbe"'),
        ("count = 4", 'count = 4\ncluster = "none.toml"', "workers.cluster: there is no cluster file"),
        ("count = 4", "count = 4\ncluster = 4", "workers.cluster: write the name of a cluster"),
        ("count = 4", 'count = 5\ncluster = "4x1gbe"', "workers.cluster: cluster 4x1gbe has room for 4 workers"),
        ("count = 4", f"count = 4\n{fault(worker=4)}", "workers: there is no worker 4 to lose at 1 s: 4 have begun"),
        ("count = 4", f"count = 4\n{fault(at='1')}", 'workers.faults[0].at: "1" is not a duration'),
        ("count = 4", f"count = 4\n{fault()[:-2]}, at_step = 3 }}]", "a fault has a time or a step; both are given"),
        ("count = 4", f"count = 4\n{fault()[:-2]}, lasting = '1 s' }}]", "lasting is how long a worker is cut off"),
        ("count = 4", f"count = 4\n{fault(kind='cut', worker=4)}", "there is no worker 4 to lose at 1 s: 4 have begun"),
        ("count = 4", f"count = 4\n{fault(kind='join')}", "workers.faults[0]: a worker that joins is given the next"),
        ("count = 4", f"count = 4\n{fault(kind='die')}", "workers.faults[0].kind is 'die'"),
        (
            "count = 4",
            f"count = 4\n{fault()[:-1]}, {fault(at='2 s')[10:]}",
            "workers: worker 1 is lost twice; one that joins has the next free rank",
        ),
        (
            "count = 4",
            'count = 4\nfailures = { mtbf = "0 s" }',
            "workers.failures: mtbf_s is 0; write a number",
        ),
        (
            "count = 4",
            'count = 4\nfailures = { mtbf = "1 us", rejoin_after = "1 us" }',
            "a step takes 0.02 s, so the run might never end; write 0.02 s or more as mtbf",
        ),
        ("count = 4", "count = 4\nfailures = { shape = 1.0 }", "workers.failures.mtbf is missing"),
        (
            'step_time = { kind = "constant", mean = "20 ms" }',
            'failures = { mtbf = "1 s", rejoin_after = "1 s" }',
            'workers: a worker that joins has the common step time; write "step_time" under [workers]',
        ),
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
    with pytest.raises(ConfigError, match=r"is a folder; write the name of a recipe"):
        load_recipe(tmp_path)


def test_reading_a_recipe_does_not_import_torch():
    code = "import sys, plesio.bench.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
