"""Models of Hugging Face's families: as many parameters as their authors state."""

import json
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import read_hugging_face

FAMILIES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
"""The values of each config.json that say a size, and the parameters that are stated, in billions."""
ACTIVE = {"gpt-oss-120b": 5.1, "gpt-oss-20b": 3.6, "qwen3-235b-a22b": 22.2, "dbrx": 36.0, "phi-3.5-moe": 6.6}
WINDOWS = {"gpt-oss-120b": 18, "gemma-2-9b": 21, "gemma-3-1b": 22, "gemma-3-27b": 52, "command-r7b": 24}


def read(folder: Path, name: str, values: dict[str, Any]) -> Any:
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(values))
    return read_hugging_face(path)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_parameters_that_its_authors_state(tmp_path: Path, name: str):
    model = read(tmp_path, name, FAMILIES[name]["config"])
    assert model.num_parameters / 1e9 == pytest.approx(FAMILIES[name]["billions"], rel=0.01)
    if name in ACTIVE:
        # OpenAI leaves the embedding out
        active = model.active_parameters - (model.embedding_parameters if "gpt-oss" in name else 0)
        assert active / 1e9 == pytest.approx(ACTIVE[name], rel=0.03)
    if name in WINDOWS:
        assert model.num_window_layers == WINDOWS[name]


def test_the_text_model_of_a_larger_one_says_so(tmp_path: Path):
    assert read(tmp_path, "gemma", FAMILIES["gemma-3-27b"]["config"]).name == "gemma (its text model)"


def test_hybrids_are_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match='"model_type": "qwen3_next", which is not modelled; these are: llama, '):
        read(tmp_path, "hybrid", {"model_type": "qwen3_next", "hidden_size": 2048})
