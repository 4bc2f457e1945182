"""How much depends on task, optimizer and bound: fixed bounds from 0 to 16 against adaptive, on slow links.

A worker under ``local_sgd:H`` sees the others' steps H - 1 steps late at most, so a bound of s is a period of s + 1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from settings import SEEDS, make

from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult

__all__ = ["run_sensitivity"]

BOUNDS = (0, 1, 2, 4, 8, 16)
RATES: Mapping[tuple[str, str], float] = {
    ("digits", "momentum"): 0.1,
    ("digits", "adam"): 0.01,
    ("stdlib_lm", "momentum"): 0.3,
    ("stdlib_lm", "adam"): 0.004,
}
"""With which BSP gets to the target first, of three tried on seed 100."""
Runs = Mapping[str, Sequence[RunResult]]


def run_sensitivity(*, num_seeds: int, do: Callable[[str, Recipe], Runs]) -> Iterator[tuple[str, Runs]]:
    """Do the runs; yields each combination's name and its runs by policy."""
    policies = ["bsp", *(f"local_sgd:{bound + 1}" for bound in BOUNDS[1:]), "adaptive"]
    for (task, optimizer), rate in RATES.items():
        name = f"{task}-{optimizer}"
        recipe = make(task, network="slow", stragglers="equal", policies=policies, seeds=SEEDS[:num_seeds], short=True)
        options = {key: value for key, value in recipe.task.options.items() if key != "learning_rate"}
        options |= {"of": recipe.task.name, "optimizer": optimizer, "learning_rate": rate}
        section = recipe.task.model_copy(update={"name": "optimizers:with_optimizer", "options": options})
        yield name, do(f"sensitivity/{name}", recipe.model_copy(update={"task": section}))
