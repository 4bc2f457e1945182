import subprocess
import sys
from pathlib import Path

import pytest

from plesio.core.errors import TaskError
from plesio.tasks import TASK_NAMES, check_task, load_task
from plesio.tasks.load import TASKS

SOURCE = """
from dataclasses import dataclass
from beside import SIZE
from plesio.tasks import Task, load_task

def make(*, size: int = SIZE, flag=False):
    if flag:
        raise RuntimeError("flag is not for use")
    return load_task("quadratic", dimension=size)

def anything(**options):
    return load_task("quadratic", **options)

def needs(*, folder):
    return make()

def nothing():
    return 3

@dataclass
class Factory:
    size: "int" = 4
    def __call__(self):
        return make(size=self.size)

finished = make()
factory = Factory()
number = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("SIZE = 5\n")
    path = tmp_path / "own.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("attribute", ["make", "anything", "finished", "factory"])
@pytest.mark.parametrize("form", ["file", "module", "relative"])
def test_a_task_of_the_user_s_own_is_found(file: Path, attribute: str, form: str) -> None:
    place = {"file": str(file), "module": "own", "relative": "own.py"}[form]
    assert load_task(f"{place}:{attribute}").name == "quadratic"


def test_options_reach_the_callable(file: Path) -> None:
    model, _ = load_task(f"{file}:make", size=7).build(0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 7


def test_a_file_is_executed_once(file: Path) -> None:
    assert load_task(f"{file}:finished") is load_task(f"{file}:finished")


def test_nothing_of_the_user_s_hides_an_installed_package(file: Path) -> None:
    before = sys.path[:]
    load_task(f"{file}:finished")
    assert sys.path[: len(before)] == before


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("digts", {}, 'no task "digts": did you mean "digits"'),
        ("zebra", {}, "known: digits, images, quadratic, stdlib_lm"),
        ("digits", {"batchsize": 3}, 'no option "batchsize"; it accepts batch_size, learning_rate, num_epochs'),
        ("digits", {"batch_size": "many"}, "batch_size is 'many'; write a whole number"),
        ("images", {}, "needs the folder of its files"),
        ("nowhere:task", {}, "No module named 'nowhere'"),
        ("nowhere.py:task", {}, "there is no file .*nowhere.py"),
        ("own.py:", {}, 'no task "own.py:"'),
        ("own.py:mak", {}, 'own.py has no "mak": did you mean "make"'),
        ("own.py:number", {}, "gives a int"),
        ("own.py:nothing", {}, "gives a int; give a plesio.tasks.Task"),
        ("own.py:finished", {"size": 3}, "finished Task and takes no options; got size"),
        ("own.py:nothing", {"size": 3}, 'no option "size"; it accepts none'),
        ("own.py:make", {"flag": True}, r"cannot be made: RuntimeError: flag is not for use \(.*own.py, line 8\)"),
        ("own.py:needs", {}, "needs a value for its option folder"),
    ],
)
def test_errors_are_one_line_that_says_what_to_write(
    file: Path, spec: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        load_task(spec, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = = 1", "cannot be imported: SyntaxError.*line 1"),
        ("import nothing_of_that_name", r"No module named .* \(.*broken.py, line 1\)"),
    ],
)
def test_a_file_that_cannot_be_imported_says_where(file: Path, source: str, message: str) -> None:
    broken = file.with_name("broken.py")
    broken.write_text(source)
    for _ in range(2):  # the second time as the first: nothing half-imported stays behind
        with pytest.raises(TaskError, match=message):
            load_task(f"{broken}:task")


def test_the_catalogue_is_sorted_and_all_of_it_can_be_imported() -> None:
    assert tuple(sorted(TASKS)) == TASK_NAMES
    for name in TASK_NAMES:
        with pytest.raises(TaskError, match=f'task "{name}" has no option "no_such_option"'):
            load_task(name, no_such_option=1)


def test_listing_the_catalogue_imports_neither_torch_nor_scikit_learn() -> None:
    program = "import sys, plesio.tasks as t; print(len(t.TASK_NAMES), {'torch', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == f"{len(TASK_NAMES)} set()"


def test_the_example_is_a_task_that_passes_the_check() -> None:
    example = Path(__file__).parents[4] / "examples" / "my_task.py"
    check_task(load_task(f"{example}:spirals", num_points=200))
