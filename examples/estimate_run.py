"""How long would a large run take on machines you do not have, and what would help? Arithmetic: it needs no torch.

    python examples/estimate_run.py

`plesio estimate` says the same on the command line; `docs/planning/index.md` has the model, its sources and its limits.
"""

from plesio_planning.estimate import Conditions, Layout, estimate_training, find_model, parse_machine, search_layouts
from plesio_planning.estimate.sensitivity import best_upgrade, bottleneck, tornado

GLOBAL_BATCH = 512
TOKENS = 300e9


def main() -> None:
    model, machine = find_model("llama-7b"), parse_machine("64xa100")

    # A layout that you know: tensor parallelism of 2, and 32 replicas.
    layout = Layout(tp=2, dp=32, zero=1, sequence_parallel=True, recomputation="none")
    run = estimate_training(
        model, layout, machine, global_batch=GLOBAL_BATCH, tokens=TOKENS, conditions=Conditions(restart_s=1200)
    )
    low_s, high_s = run.interval_s
    print(f"{run.days:.1f} days ({low_s / 86_400:.1f} to {high_s / 86_400:.1f}) at {run.step.mfu:.0%} MFU")
    print(
        f"{run.memory.total_bytes / 2**30:.0f} GiB a device, {run.goodput.num_failures:.1f} failures, ${run.cost:,.0f}"
    )

    print("where the time goes:")
    for part, seconds in sorted(run.parts.items(), key=lambda item: -item[1])[:5]:
        print(f"  {part:<34} {seconds / run.total_s:>6.1%}")
    part, share = bottleneck(run)
    upgrade = best_upgrade(tornado(run))
    print(f"most of it is {part} ({share:.0%}); of all inputs, 20 % better, {upgrade.name} helps most")

    # Or the fastest layout of all that divide and fit. A search promises too much: docs/planning/index.md says how
    # much.
    search = search_layouts(model, machine, global_batch=GLOBAL_BATCH)
    best, step = search.best.layout, search.best.step
    print(f"of {search.num_tried} layouts the fastest has")
    print(f"  tp {best.tp}, pp {best.pp}, dp {best.dp}, ZeRO {best.zero}, micro-batches of {best.micro_batch}")
    print(f"  and takes {step.total_s:.2f} s a step, where the layout above takes {run.step.total_s:.2f} s")


if __name__ == "__main__":
    main()
