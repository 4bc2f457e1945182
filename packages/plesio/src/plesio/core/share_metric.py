"""Metrics that are shares of 1: people read them in percent, and a target of one lies between 0 and 1."""


def is_share(metric_name: str) -> bool:
    """Return True if values of the metric are shares of 1."""
    return metric_name == "accuracy"


def target_problem(metric_name: str, target: float | None) -> str | None:
    """Say why no run can reach the target; None if it is one.

    >>> target_problem("accuracy", 97)
    'target is 97, and accuracy is a share between 0 and 1; did you mean 0.97?'
    >>> target_problem("accuracy", 0.97), target_problem("perplexity", 12.0), target_problem("accuracy", None)
    (None, None, None)
    """
    if target is None or not is_share(metric_name) or 0 <= target <= 1:
        return None
    hint = f"did you mean {target / 100:g}?" if 1 < target <= 100 else "write a share, as in 0.97"
    return f"target is {target:g}, and {metric_name} is a share between 0 and 1; {hint}"
