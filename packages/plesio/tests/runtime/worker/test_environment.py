"""A place in a job that cannot be is refused in a line, before anybody is waited for."""

import pytest

from plesio.core.errors import ConfigError
from plesio.runtime.worker.environment import WorkerPlace

GOOD = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"RANK": "2"}, "RANK=2 with WORLD_SIZE=2: ranks are 0 to 1; .* plesio run --join"),
        ({"RANK": "-1"}, "RANK=-1: write 0 or more"),
        ({"WORLD_SIZE": "abc"}, 'WORLD_SIZE="abc" is not a whole number'),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: write 1 or more"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 with 2 workers on the host"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0: write 1 or more"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: write 1 to 65535"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR not set"),
    ],
)
def test_variables_that_cannot_be_are_refused_in_a_line(wrong: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        WorkerPlace.from_environment({**GOOD, **wrong})


def test_a_rank_beyond_the_others_joins_where_a_launcher_says_so():
    place = WorkerPlace.from_environment({**GOOD, "RANK": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert place is not None
    assert place.late
