"""Renew the golden comparison: `python packages/plesio/tests/report/golden/renew.py`, then read the difference before
committing it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from plesio.core.results import read_results
from plesio.report.summarise import compare_runs

HERE = Path(__file__).parent
EXPECTED = HERE / "comparison.json"


def computed() -> dict[str, Any]:
    """The comparison of `results.json` as JSON values, less what is long: the runs and the loss curves."""
    comparison = dataclasses.replace(compare_runs(read_results(HERE / "results.json")), runs=())
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(comparison)))
    for policy in plain["policies"]:
        del policy["loss_mean"]
    return plain


if __name__ == "__main__":
    EXPECTED.write_text(json.dumps(computed(), indent=1) + "\n", encoding="utf-8")
