"""A short form of `make stress`: strangers and a hostile member while two workers train."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.transport import PATIENCE_S

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stress.py"
NUM_CONNECTIONS, NUM_MESSAGES = 1400, 160


def test_a_run_goes_on_and_all_that_does_not_belong_to_it_is_refused_and_counted():
    sizes = ["--connections", str(NUM_CONNECTIONS), "--messages", str(NUM_MESSAGES), "--window", "1", "--no-save"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *sizes],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert "{" in done.stdout, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert found["alive"]
    assert sum(found["refused"].values()) == NUM_CONNECTIONS + NUM_MESSAGES, found
    assert {"handshake", "ticket", "malformed", "oversize", "out_of_order", "foreign_generation"} <= set(
        found["refused"]
    )
    assert found["memory_grown_bytes"] < 2**26
    assert found["steps_per_s_attacked"] > 0
