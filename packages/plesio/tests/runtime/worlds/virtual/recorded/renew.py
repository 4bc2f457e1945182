"""Record the runs anew: `PYTHONPATH=tests python packages/plesio/tests/runtime/worlds/virtual/recorded/renew.py`.

Only for a change that is meant to change what runs come to: read the difference, and say in the commit why it is right.
"""

import json
import shutil
import tempfile
from pathlib import Path

from support.recorded_runs import RUNS, capability, digests_of, train

HERE = Path(__file__).parent


def main() -> None:
    """Write `digests.json` and the event logs."""
    digests = {}
    for name, run in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            train(run, Path(folder))
            digests[name] = digests_of(Path(folder))
            shutil.copy(Path(folder) / "events.jsonl", HERE / "logs" / f"{name}.jsonl")
    text = json.dumps({"capability": capability(), "runs": digests}, indent=1)
    (HERE / "digests.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
