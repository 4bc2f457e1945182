"""`plesio.join`: the one call that turns a training loop into a Plesio worker."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from plesio.core.clock import MonotonicClock
from plesio.core.errors import ConfigError
from plesio.core.trace import TraceWriter
from plesio.policies import Adaptive, Policy, parse_policy
from plesio.runtime.environment import Place
from plesio.runtime.exchange.adaptive import AdaptiveExchange, Transition
from plesio.runtime.exchange.collective import CollectiveExchanges
from plesio.runtime.exchange.exchange import Exchange, LocalExchange, SnapshotTaker
from plesio.runtime.exchange.layout import Layout
from plesio.runtime.exchange.replica import Replica
from plesio.runtime.exchange.shard import optimizer_spec
from plesio.runtime.exchange.store import StoreExchange
from plesio.runtime.job import Job
from plesio.runtime.job_handle import JobHandle, ambient_job
from plesio.runtime.ledger import Meter, RunInfo
from plesio.runtime.monitor import StepMonitor
from plesio.runtime.pacing import Pacer
from plesio.runtime.session import Session
from plesio.runtime.timeline import Timeline
from plesio.runtime.worlds.alone import AloneWorld
from plesio.runtime.worlds.distributed import DistributedWorld

__all__ = ["join"]


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    policy: Policy | str = "bsp",
    trace: Path | str | None = None,
    num_servers: int | None = None,
    snapshot_every: int | None = None,
    pacer: Pacer | None = None,
    info: RunInfo | None = None,
    job: JobHandle | None = None,
    total_samples: int | None = None,
    on_transition: Callable[[Transition, torch.optim.Optimizer], None] | None = None,
) -> Session:
    """Take part in training ``model`` with the other workers of this job; the start is common to all of them.

    Under torchrun's variables (``plesio run``, torchrun, Slurm ...) this process becomes one of the workers; without
    them it trains alone, in an ordinary loop. All workers start from rank 0's parameters and buffers.

    Args:
        model: Stays yours and is never wrapped; call it as before. Replicas must be alike on all workers.
        optimizer: Built from the model's parameters. Learning rates are those of the synchronous step under every
            policy, and schedulers go on working.
        policy: A policy such as ``plesio.SSP(bound=4)``, or its text, ``"ssp:4"``.
        trace: Folder for traces and ``results.json``; None for none.
        num_servers: Servers of the store exchange; None is one per host.
        snapshot_every: Keep the shared parameters at every so many samples, for `Session.finish` to evaluate.
        pacer: Makes steps take as long as another machine's would.
        info: Names for the results, and the seed of the sample order.
        job: A job to run in; None makes one for this session.
        total_samples: Samples of the whole training, over all workers and epochs, if that is known; tells the adaptive
            policy how far it is.
        on_transition: Called on every worker, with the optimizer, when the adaptive policy has changed to another.

    Returns:
        The session; close it, or use it as a context manager.

    Raises:
        PolicySpecError: The policy's text cannot be read.
        TaskError: The model has no trainable parameters, or the optimizer none of the model's.
        ExchangeError: The store's servers cannot run this optimizer.
        ConfigError: This worker joins late, and the policy's exchange is a collective.
        TransportError: The other workers cannot be reached.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
    ...     loss = model(torch.ones(4, 2)).square().mean()
    ...     loss.backward()
    ...     session.step(loss)
    >>> session.report().steps
    1
    """
    names = RunInfo() if info is None else info
    replica = Replica(model, optimizer)
    job = ambient_job() if job is None else job
    if job is not None:
        policy = policy if job.policy is None else job.policy
        trace = trace if trace is not None else job.trace
        pacer = pacer if pacer is not None else job.pacer
    chosen = parse_policy(policy) if isinstance(policy, str) else policy
    place = job.place if job is not None else Place.from_environment()
    folder = None if trace is None else Path(trace)
    meter = Meter()
    rank = 0 if place is None else place.rank
    if place is not None and chosen.exchange == "store" and chosen.update == "gradient":
        optimizer_spec(optimizer)  # every worker sees at once that the servers cannot run it
    if place is not None and chosen.exchange == "collective" and place.late:
        raise ConfigError(
            "a collective exchange has a fixed membership, so no worker can join it while it runs; "
            "use a policy on the store (ssp, asp, or exchange=store)"
        )

    def give_up_tracing(sentence: str) -> None:
        meter.totals.fallbacks.append(sentence)
        print(f"plesio: worker {rank}: {sentence}", file=sys.stderr)

    path = None if folder is None else folder / f"trace-{rank}.jsonl"
    header = {"worker": rank, "policy": chosen.spec}
    run_clock = MonotonicClock() if job is None else job.clock
    trace_writer = TraceWriter(path, header=header, on_failure=give_up_tracing, clock=run_clock)
    timeline = Timeline(meter, trace_writer, clock=run_clock)

    def refuse(clock: int, reason: str) -> None:
        meter.refuse(reason)
        timeline.event("refuse", at_s=run_clock.now_s(), clock=clock, reason=reason)

    if place is None:
        alone = AloneWorld(policy=chosen, info=names, folder=folder, meter=meter)
        local = LocalExchange(replica, refuse=refuse, snapshots=SnapshotTaker(snapshot_every))
        return Session(replica, policy=chosen, world=alone, exchange=local, timeline=timeline, pacer=pacer)

    world = DistributedWorld(
        job if job is not None else Job(place),
        owns_job=job is None,
        policy=chosen,
        info=names,
        folder=folder,
        meter=meter,
        snapshot_every=snapshot_every,
    )
    try:
        exchange: Exchange
        if chosen.exchange == "store":
            client = world.connect(num_servers or place.num_hosts, on_refused=refuse)
            layout = Layout.of(replica.tensors(), num_servers=len(client.endpoints))
            store = StoreExchange(
                replica, policy=chosen, client=client, layout=layout, timeline=timeline, refuse=refuse
            )
            if place.rank == 0:
                store.offer_initial()
            world.join(layout=layout.digest())
            store.begin(world.clock)
            world.before_rest = store.flush
            exchange = store
        else:
            world.connect(1, on_refused=refuse)
            world.join(layout=replica.digest())  # first: nobody may wait in a collective for one who disagrees
            group = world.group(next(iter(replica.parameters.values())).device.type)
            monitor = None
            if isinstance(chosen, Adaptive):
                monitor = StepMonitor(
                    place.rank,
                    config=chosen.review,
                    timeline=timeline,
                    rounds=world.rounds,
                    total_samples=total_samples,
                )
            exchanges = CollectiveExchanges(
                replica,
                group=group,
                timeline=timeline,
                refuse=refuse,
                snapshots=SnapshotTaker(snapshot_every if place.rank == 0 else None),
                gauge=monitor,
                seed=names.seed,
            )
            exchanges.make_equal()
            if isinstance(chosen, Adaptive) and monitor is not None:
                exchange = AdaptiveExchange(
                    replica,
                    group=group,
                    exchanges=exchanges,
                    first=chosen.first_setting.policy,
                    monitor=monitor,
                    rounds=world.rounds,
                    timeline=timeline,
                    report=world.review,
                    answer=world.steer,
                    on_transition=on_transition,
                )
            else:
                exchange = exchanges.build(chosen)
        return Session(replica, policy=chosen, world=world, exchange=exchange, timeline=timeline, pacer=pacer)
    except BaseException as error:
        timeline.trace.close()
        world.close(status="failed", error=str(error))
        raise
