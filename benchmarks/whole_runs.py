"""Whole runs: device-hours that were reported, beside the fastest layout with 18 bytes a parameter that a search finds.

Where nobody published how many devices took part (7B, 13B and 33B, Llama 3), a number is assumed; nobody published the
layouts. Sources: Touvron et al. 2023a, table 15; 2023b, table 2; the model card of Llama 3 (Meta 2024).

    python benchmarks/whole_runs.py
"""

from plesio_planning.estimate import Model, find_model, parse_machine
from plesio_planning.estimate.search import search_layouts
from plesio_planning.estimate.training import estimate_training
from record import print_table

BATCH_TOKENS = 2**22
RUNS = (
    ("llama-7b", "1024xa100", 1.0e12, 82_432),
    ("llama-13b", "1024xa100", 1.0e12, 135_168),
    ("llama-33b", "2048xa100", 1.4e12, 530_432),
    ("llama-65b", "2048xa100", 1.4e12, 1_022_362),
    ("llama-2-7b", "1024xa100", 2.0e12, 184_320),
    ("llama-2-13b", "1024xa100", 2.0e12, 368_640),
    ("llama-2-70b", "2048xa100", 2.0e12, 1_720_320),
    ("llama-3-8b", "8192xh100", 15e12, 1_300_000),
    ("llama-3-70b", "8192xh100", 15e12, 6_400_000),
)
"""Model, machine, tokens, reported device-hours."""


def batch_of(model: Model) -> int:
    """About 4M tokens, and 8M of Llama 3, whose devices are more."""
    tokens = 2 * BATCH_TOKENS if model.name.startswith("llama-3") else BATCH_TOKENS
    return tokens // model.tokens_per_sample


def main() -> None:
    rows = []
    for name, machine_name, tokens, reported in RUNS:
        model, machine = find_model(name), parse_machine(machine_name)
        best = search_layouts(model, machine, global_batch=batch_of(model)).best
        run = estimate_training(model, best.layout, machine, global_batch=batch_of(model), tokens=tokens)
        error = 100 * (run.device_hours / reported - 1)
        mfu, goodput = (f"{100 * share:.1f} %" for share in (run.step.mfu, run.goodput.share))
        rows.append([name, machine_name, f"{reported:,}", f"{run.device_hours:,.0f}", f"{error:+.0f} %", mfu, goodput])
    columns = ["model", "machine", "reported", "estimated", "error", "MFU", "goodput"]
    print_table("device-hours of whole runs, in the fastest layout", columns=columns, rows=rows)


if __name__ == "__main__":
    main()
