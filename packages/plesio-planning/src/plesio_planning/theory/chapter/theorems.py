"""The theorems that the text's later pages refer to: 11 to 22, and 3, 6 and 8, whose numbers they use again."""

from plesio_planning.theory.chapter.entry import Entry

__all__ = ["LATER_THEOREMS"]

LATER_THEOREMS: tuple[Entry, ...] = (
    Entry(
        place="3",
        claim="An all-reduce moves at least (N-1)/N of the message for each worker.",
        stand="holds otherwise",
        reason="Twice that: to add up, and to tell (Patarasuk & Yuan 2009). The text's list has another theorem 3.",
        command="plesio bound all-reduce-bytes",
    ),
    Entry(
        place="6",
        claim="Efficiency is at most computing over computing and communicating.",
        stand="holds",
        reason="Without overlap; with it, computing over the longer of the two. The text's list has another.",
        command="plesio study data-parallel",
    ),
    Entry(
        place="8",
        claim="The slowest of N workers takes at least 1 + c log N times CV of the mean.",
        stand="wrong",
        reason="By the tail: for lognormal times, CV .3 and N = 256, it takes 2.21 times, and the text says 1.15.",
        command="plesio study stragglers",
    ),
    Entry(
        place="11",
        claim="Ring and tree cross at αN/(β log₂ N) bytes.",
        stand="holds otherwise",
        reason="At αB((N-1)-log₂N)/(log₂N-(N-1)/N): 17.6 MB, where this form gives 16 and the text's program 125.4.",
        command="plesio study collectives",
    ),
    Entry(
        place="12",
        claim="Asynchronous SGD, convex, converges as 1/T + τ/T.",
        stand="holds otherwise",
        reason="Without noise; with it as σ/√T + τ/T, where the mean staleness counts (Koloskova et al. 2022).",
        command="plesio bound asynchronous-average-staleness",
    ),
    Entry(
        place="12, on compression",
        claim="A compressor's bias and variance bound the error; less compression, less error.",
        stand="holds otherwise",
        reason="Bias without feedback leaves a floor of ε²; unbiased variance lowers the rate and adds noise.",
        command="plesio bound compressed-gradients",
    ),
    Entry(
        place="13",
        claim="The bubble is (p-1)/(m+p-1).",
        stand="holds",
        reason="The text's own table has 58.3 and 43.8 % at m = 4 and 8, where this is 63.6 and 46.7 %.",
        command="plesio bound pipeline-bubble",
    ),
    Entry(
        place="14",
        claim="A staleness of τ makes stragglers matter τ times less.",
        stand="wrong",
        reason="A bound averages delays that pass; a worker that stays slow sets the pace for every bound.",
        command="plesio study consistency --slowdown 2",
    ),
    Entry(
        place="15",
        claim="A gradient's variance grows with its staleness.",
        stand="not here",
        reason="Its noise is that of the parameters it was computed at; what grows is its bias, αLτ‖g‖ at most.",
    ),
    Entry(
        place="16",
        claim="Activations grow with m under GPipe, and with √m if they are recomputed.",
        stand="holds otherwise",
        reason="With m under GPipe, with p under 1F1B; the root of recomputing is over layers (Chen et al. 2016).",
        command="plesio study pipeline",
    ),
    Entry(
        place="17",
        claim="A ring keeps all links busy, a tree does not.",
        stand="holds",
        reason="A ring reaches the bound of bytes; the tree's share is shown as the bus bandwidth by size.",
        command="plesio study collectives",
    ),
    Entry(
        place="18",
        claim="The best learning rate falls as 1/(1+τ).",
        stand="holds",
        reason="Up to a constant: the limit is about π/(2τ+1), and the best rate is near it.",
        command="plesio study bounded-staleness",
    ),
    Entry(
        place="18, on compression",
        claim="Error feedback brings a biased compressor back to convergence.",
        stand="holds",
        reason="At small enough steps: 4α²L²(1-δ)G²/δ² (Karimireddy et al. 2019); at large ones it diverges.",
        command="plesio bound error-feedback",
    ),
    Entry(
        place="19",
        claim="K local steps take a K-th of what stragglers cost.",
        stand="holds otherwise",
        reason="Delays that pass average out, by about √K; a worker that stays slow costs as much as ever.",
        command="plesio study stragglers",
    ),
    Entry(
        place="20",
        claim="The best number of micro-batches is about 2p.",
        stand="wrong",
        reason="A bubble of 5 % takes 19(p-1); what limits m under 1F1B is the batch, not the memory.",
        command="plesio bound pipeline-bubble --pp 8 --micro-batches 16",
    ),
    Entry(
        place="21",
        claim="The best checkpoint interval is √(2CM).",
        stand="holds otherwise",
        reason="Young's formula; see B.15.",
        command="plesio bound checkpoint-interval",
    ),
    Entry(
        place="22",
        claim="The learning rate may grow with the batch up to the critical one.",
        stand="holds otherwise",
        reason="The best rate is ε/(1 + B_noise/B) (McCandlish et al. 2018): linear well below it, and level beyond.",
        command="plesio study batch-scaling",
    ),
)
