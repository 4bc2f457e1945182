from pathlib import Path

import pytest

from plesio.cli.compare import load

RECIPE = """
[task]
name = "NAME"
[run]
policies = ["bsp"]
epochs = 1
[workers]
count = 2
"""


@pytest.mark.parametrize(("name", "says"), [("digits", False), ("mine.py:make", True), ("my.module:make", True)])
def test_a_recipe_that_names_code_says_so_when_it_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: bool
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("NAME", name))
    load(recipe, {}, command="plesio compare")
    said = capsys.readouterr().err
    assert (said == "") is not says
    if says:
        assert said.startswith(f"plesio: {recipe} names code, which runs with your rights: ")
        assert said.count("\n") == 1
