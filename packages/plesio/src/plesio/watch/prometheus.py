"""A view of a run as Prometheus reads it: its text format, version 0.0.4."""

from collections.abc import Iterator, Mapping

from plesio.watch.view import RunView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("running", "finished", "interrupted", "failed")


def metrics_text(view: RunView) -> str:
    """Return the metrics: counters end in ``_total``, the others are gauges."""
    return "".join(_lines(view))


def _lines(view: RunView) -> Iterator[str]:
    mean, p95, most = view.staleness
    yield from _metric("info", "The run", {_labels(policy=view.policy, in_force=view.in_force, task=view.task): 1})
    yield from _metric("status", "1 for the run's status", {_labels(status=one): view.status == one for one in _STATES})
    yield from _metric("steps_total", "Optimizer steps of all workers", {"": view.steps})
    yield from _metric("samples_total", "Samples of all workers", {"": view.samples})
    yield from _metric("training_seconds_total", "Seconds of training", {"": view.elapsed_s})
    yield from _metric("samples_per_second", "Samples a second, lately", {"": view.samples_per_s})
    yield from _metric("remaining_seconds", "Seconds of training that are left", {"": view.remaining_s})
    yield from _metric("loss", "Training loss", {"": view.loss})
    metric = view.metrics[-1][1] if view.metrics else None
    yield from _metric("metric", "Latest evaluation", {_labels(name=view.metric_name): metric})
    staleness = {_labels(statistic=name): value for name, value in (("mean", mean), ("p95", p95), ("max", most))}
    yield from _metric("staleness", "Staleness of applied updates, in versions", staleness)
    yield from _metric("max_lead", "Largest lead of a worker, in steps", {"": view.max_lead})
    yield from _metric("decisions_total", "Decisions of the policy", {"": len(view.decisions)})
    yield from _metric("lost_workers_total", "Workers lost", {"": sum(row.state == "lost" for row in view.workers)})
    yield from _metric("refused_updates_total", "Updates that were refused", {"": view.refused})
    sent = {_labels(link=link): number for link, number in view.bytes_sent.items()}
    yield from _metric("sent_bytes_total", "Bytes sent, by class of link", sent)
    workers = {row: _labels(worker=row.worker) for row in view.workers}
    up = {label: row.state not in ("lost", "left") for row, label in workers.items()}
    yield from _metric("worker_up", "1 while the worker takes part", up)
    steps = {label: row.clock for row, label in workers.items()}
    yield from _metric("worker_clock", "Steps that the worker has finished", steps)
    yield from _metric(
        "worker_step_seconds", "Seconds of a step", {label: row.step_s for row, label in workers.items()}
    )
    shares = {
        _labels(worker=row.worker, use=use): getattr(row, use)
        for row in view.workers
        for use in ("compute", "exchange", "wait")
    }
    yield from _metric("worker_time_share", "Share of the worker's time, by its use", shares)


def _metric(name: str, meaning: str, values: Mapping[str, float | None]) -> Iterator[str]:
    known = {labels: value for labels, value in values.items() if value is not None}
    if known:
        yield f"# HELP plesio_{name} {meaning}.\n"
        yield f"# TYPE plesio_{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
    for labels, value in known.items():
        yield f"plesio_{name}{labels} {float(value)!r}\n"


def _labels(**labels: object) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
