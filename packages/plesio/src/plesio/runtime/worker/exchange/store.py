"""The store exchange, worker's side: push an update, pull parameters, and run on the credit that came with them.

Between two exchanges the replica goes on by itself, with its own optimizer: a worker sees its own updates at once,
those of others at the next pull. An exchange happens when the policy's period is over, or earlier when the credit that
came with the last pull is used up; so parameters are never older than the policy allows (see `ShardServer` for why no
other message is needed).

A push has the mean gradient of the steps since the last one (``gradient`` updates), or the way that the replica has
come since the last pull (``delta``). Tensors without a gradient are not sent; of a pull only tensors come back that
changed. NaN and infinity are looked for before anything is sent. With a compression an update is pushed in part
(`plesio.runtime.worker.compression.pushes`), and its rest at the end, before a pause and before another policy.
Buffers are sent in full. So is what is pulled, but under a policy that compresses pulls: then servers keep what each
worker has, and send how the parameters differ from it, so nothing is lost, only late.

With a delay of d steps push and pull run behind the next d, and the answer is merged after them: the replica becomes
what the servers had, plus its own steps since the push. It makes these with its own optimizer, as between two
exchanges, where they stand for what all will have done by then: without them a small transformer under ``asp,delay=1``
ends 11 % above the perplexity of ``asp``, with them 1 % (docs/log.md, section 85). It asks for credit for the step
after these, so the servers answer no sooner than they would answer a worker that has come so far: hiding adds nothing
to what the bound allows.

Where the servers step, `server_steps` keeps what belongs to the worker's optimizer alive, and what the script writes
into parameters by itself is refused: the next pull would undo it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from plesio.policies import Policy
from plesio.protocol.bulk import Push
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.parameters.optimizer_spec import group_options
from plesio.runtime.worker.compression.pushes import PushParts
from plesio.runtime.worker.compression.records import CompressionRecords
from plesio.runtime.worker.exchange.exchange import Exchange, Gauge, SharedState, StepProgress
from plesio.runtime.worker.exchange.fragments import StoreFragment, store_fragments
from plesio.runtime.worker.exchange.local_part import local_part
from plesio.runtime.worker.exchange.outer_step import outer_optimizer
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.store_client import Reply, StoreClient
from plesio.runtime.worker.exchange.stored_state import ServerSteps, StoredState
from plesio.runtime.worker.meter import WorkerTimeline


class StoreAnswer(NamedTuple):
    """The answer to an exchange, less the parameters.

    Attributes:
        credit: The clock up to which the worker may run.
        waited_s: Seconds of the exchange that it waited for others.
        halted: Whether the stage that the exchange is for ends.
        samples: Samples of all workers that are in the parameters.
    """

    credit: int = 0
    waited_s: float = 0.0
    halted: bool = False
    samples: int = 0


class _Pull(NamedTuple):
    """A pull under way.

    Attributes:
        clock: When it was asked for.
        due: The clock after whose step the answer is merged.
        own: This worker's samples in all, which the answer contains.
    """

    number: int
    clock: int
    due: int
    asked_s: float
    fragment: StoreFragment
    own: int


class StoreExchange(Exchange):
    """One worker's view of the store."""

    ready_s: float | None = None

    def __init__(
        self,
        replica: Replica,
        *,
        policy: Policy,
        client: StoreClient,
        layout: SliceLayout,
        timeline: WorkerTimeline,
        gauge: Gauge | None = None,
        outer: Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        self._replica, self._policy = replica, policy
        self._synchronous = policy.synchronous
        self._gauge, self._client, self._timeline = gauge, client, timeline
        if outer is None and policy.outer_step is not None:
            outer = outer_optimizer(policy.outer_step, replica.optimizer)
        self._stored = StoredState(replica, policy=policy, client=client, layout=layout, outer=outer)
        self._fragments = store_fragments(replica, policy=policy, layout=layout, seed=seed, client=client)
        self._turn = 0
        """Number of the fragment that is exchanged next."""
        compressed = [one.compressed for one in self._fragments if one.compressed is not None]
        self._records = CompressionRecords(compressed, timeline=timeline) if compressed else None
        self._compressed_pulls = policy.compression.spec if policy.compresses_pulls else None
        self._gradients: dict[str, torch.Tensor] = {}
        self._sent_groups: tuple[dict[str, Any], ...] | None = None
        self._num_steps = 0
        self._num_samples = 0
        self._own = self._heard = 0
        """This worker's samples in all, and those that the parameters pulled last contain."""
        self._clock = 0
        self._pushed_clock = 0
        self._began_s, self._blocked_s = timeline.now_s(), 0.0
        """When the steps of the update under way began, and the seconds since in which the worker was blocked."""
        self._under_way: _Pull | None = None
        self.answer = StoreAnswer()
        self._fetched_snapshots = len(client.snapshots())
        self._steps = ServerSteps(
            replica,
            fetch=self._stored.fetch_optimizer,
            policy=policy,
            warn=timeline.meter.warn,
            refuses=gauge is None,  # else the policy goes elsewhere, once it has noticed
        )
        self._ended = False

    @property
    def halted(self) -> bool:
        return self.answer.halted

    def halt(self) -> None:
        self.answer = self.answer._replace(halted=True)

    def resume(self) -> None:
        self.answer = self.answer._replace(halted=False)

    def take_answer(self, answer: StoreAnswer) -> None:
        """Take over the answer to another worker, which exchanges for this one."""
        self.answer, self._client.samples = answer, answer.samples

    def take_back(self) -> None:
        """Take over what the servers hold now, the optimizer's state too where they have stepped it."""
        begun_s = self._timeline.now_s()
        replies = self._client.shared(snapshot=None, optimizer=True)
        self._merge(replies, self._fragments)
        self._stored.set_optimizer(replies)
        self._timeline.communicate(begun_s, self._timeline.now_s(), clock=self._clock)

    def offer(self) -> None:
        self._stored.offer()

    def begin(self, clock: int) -> None:
        self._begin(clock, known_version=None)

    def admitted_at(self, clock: int) -> None:
        self._begin(clock, known_version=min(one.version for one in self._fragments))

    def _begin(self, clock: int, *, known_version: int | None) -> None:
        self._clock = self._pushed_clock = clock
        self._turn = clock // self._policy.period % len(self._fragments)
        number = self._client.ask(
            after=clock, clock=clock, known_version=known_version, compressed=self._compressed_pulls
        )
        self._merge(self._client.pulled(number), self._fragments)
        self._heard = self._own

    def step(self, progress: StepProgress) -> None:
        if self._gauge is not None:
            self._gauge.measure(self._replica.gradients())
        finite = self._replica.gradients_finite()
        if not finite:
            self._timeline.refuse(progress.clock, self._replica.refusal(progress.loss))
        due = self.due(progress.clock)
        replaced = due and not self._policy.delay
        self.add(progress, finite=finite, due=replaced)
        if due:
            self.exchange()
        if replaced:
            self.stepped(finite=finite)
        if not due:
            self._finish_pull_if_due()
        self._client.own_since = self._own - self._heard
        self._replica.optimizer.zero_grad(set_to_none=True)

    def stepped(self, *, finite: bool) -> None:
        """Take note that an exchange is over that this step was a part of, if it is finite."""
        if finite and self._policy.update == "gradient":
            self._steps.after()

    def due(self, clock: int) -> bool:
        """Tell whether an exchange follows step ``clock``: the period is over, or the credit is used up.

        The answer to one that is under way brings credit.
        """
        early = clock + 1 + self._policy.credit_ahead > self.answer.credit
        return self._policy.exchanges_at(clock) or (self._under_way is None and early)

    def add(self, progress: StepProgress, *, finite: bool, due: bool) -> None:
        """Make the step that is in the gradients a part of the update under way, if it is finite.

        ``due``: an exchange follows, and the replica waits for what it brings.
        """
        self._clock = progress.clock
        for fragment in self._fragments:
            fragment.step(finite=finite)
        self._num_samples += progress.samples
        self._own += progress.samples
        if finite:
            self._num_steps += 1
            self.step_alone(due=due, take=self._accumulate)

    def step_alone(self, *, due: bool, take: Callable[[], None] = lambda: None) -> None:
        """Step the replica's own optimizer, where what it does is not replaced at once by what is pulled.

        Args:
            due: Whether an exchange follows for which the replica waits.
            take: Takes the gradient that is pushed, as the optimizer's own hooks leave it.
        """

        def step() -> None:
            with self._steps.before(servers=due):
                take()
                if not due:
                    self._replica.optimizer.step()

        self._replica.stepper.step(None if self._policy.update == "delta" else step)

    def exchange(self) -> None:
        """Push the update under way and pull, or begin to; a pull that was begun before is merged first."""
        fragment = self._fragments[self._turn]
        self._push(fragment)
        self._finish_pull()
        self._begin_pull(fragment, clock=min(self._clock + self._policy.delay, max(self._clock, self.answer.credit)))
        self._turn = (self._turn + 1) % len(self._fragments)
        self._finish_pull_if_due()

    def _accumulate(self) -> None:
        for name, parameter in self._replica.parameters.items():
            if parameter.grad is None:
                continue
            grad = parameter.grad if self._replica.island is None else local_part(parameter.grad)
            grad = grad.to_dense()
            if name in self._gradients:
                self._gradients[name].add_(grad)
            else:
                # in a rack it may be a view of DDP's bucket, which the update's next step writes over
                # and 16-bit numbers are added up in 32 bits; a step of the replica's own may write into it
                wide = torch.promote_types(grad.dtype, torch.float32)
                kept = self._policy.period == 1 and not self._policy.delay
                self._gradients[name] = grad if kept else grad.to(wide, copy=True)

    def _push(self, fragment: StoreFragment, *, in_full: bool = False) -> None:
        """Send the update under way; if the fragment has no finite step, report that instead."""
        clock = self._clock
        if self._synchronous:  # the round's clock, also where a worker ends its run before the period is over
            clock = -(-clock // self._policy.period) * self._policy.period
        self._pushed_clock = clock
        if fragment.num_steps:
            self._send(fragment, in_full=in_full)
        else:
            self._client.not_finite(clock=clock, base_version=fragment.pushed(), fragment=fragment.number)
            self._gradients, self._num_samples = {}, 0

    def _send(self, fragment: StoreFragment, *, in_full: bool) -> None:
        """Send the update under way, or without steps what has not been sent of earlier ones."""
        begun_s = self._timeline.now_s()
        self._tell_frozen()
        update, encoded = self._update(fragment, in_full=in_full)
        present, payloads = self._stored.pack(update, encoded=encoded)
        groups = group_options(self._replica.optimizer)
        changed = self._policy.update == "gradient" and groups != self._sent_groups
        if changed:
            self._sent_groups = groups
        push = Push(
            num_steps=self._num_steps,
            num_samples=self._num_samples,
            present=None,
            finished=self._client.take_finished(),
            groups=groups if changed else None,
            step_s=self._step_s() if self._policy.looks_at_pace and self._num_steps else 0.0,
            compressed=None if encoded is None else self._policy.compression.spec,
            fragment=fragment.number,
        )
        base_version, clock = fragment.pushed(), self._pushed_clock
        self._client.push(push, clock=clock, base_version=base_version, present=present, payloads=payloads)
        now_s = self._timeline.now_s()
        self._timeline.communicate(begun_s, now_s, clock=self._clock)
        self._timeline.event("push", at_s=now_s, clock=self._clock, version=fragment.version, steps=self._num_steps)
        self._gradients = {}
        self._num_steps = self._num_samples = 0

    def _step_s(self) -> float:
        """Return the seconds of a step of the update under way, less those in which the worker was blocked."""
        took_s = self._timeline.now_s() - self._began_s - self._blocked_s
        self._began_s, self._blocked_s = self._timeline.now_s(), 0.0
        return took_s / self._num_steps

    def _tell_frozen(self) -> None:
        frozen = self._replica.frozen_since
        if frozen is not None and not self._synchronous:
            self._timeline.meter.warn(
                f'"{frozen}" was frozen in mid-run: under {self._policy.spec} updates that other workers make before '
                "they freeze it still move it; where it must hold still, close the session, freeze it, and join anew"
            )

    def _update(
        self, fragment: StoreFragment, *, in_full: bool
    ) -> tuple[dict[str, torch.Tensor], Sequence[torch.Tensor] | None]:
        """Return the tensors of the update under way, and for each server its bytes of them that are compressed."""
        deltas = self._policy.update == "delta" and fragment.num_steps
        parts = PushParts(self._stored.delta(fragment.names) if deltas else self._gradients, None)
        if fragment.compressed is not None and self._records is not None:
            parts = fragment.compressed.take(parts.values, clock=self._clock, in_full=in_full)
            self._records.exchanged(self._clock)
        update = dict(parts.values)
        if self._policy.update == "gradient" and parts.encoded is None:
            for grad in update.values() if self._num_steps > 1 else ():
                grad.div_(self._num_steps)
            parameters = self._replica.parameters
            update = {name: grad.to(parameters[name].dtype) for name, grad in update.items()}
        return {**update, **({} if fragment.number else self._replica.buffers)}, parts.encoded

    def _begin_pull(self, fragment: StoreFragment, *, clock: int, in_full: bool = False) -> None:
        """Ask for the parameters with the update that was pushed, and for credit beyond ``clock``."""
        asked_s = self._timeline.now_s()
        number = self._client.ask(
            after=self._pushed_clock,
            clock=clock,
            known_version=-1 if in_full and self._compressed_pulls else fragment.version,
            present=fragment.present,
            compressed=self._compressed_pulls,
        )
        self._under_way = _Pull(number, self._clock, due=clock, asked_s=asked_s, fragment=fragment, own=self._own)
        if self._policy.delay and self._policy.own_share is None:
            self._stored.begin_delta(fragment.names)

    def _finish_pull_if_due(self) -> None:
        if self._under_way is not None and self._clock >= self._under_way.due:
            self._finish_pull()

    def _finish_pull(self) -> None:
        """Merge the answer to the pull under way, if there is one."""
        if self._under_way is None:
            return
        pull, self._under_way = self._under_way, None
        self._heard = pull.own
        begun_s = self._timeline.now_s()
        replies = self._client.pulled(pull.number)
        # without steps since, the worker takes what the servers have, as it is
        self._merge(replies, [pull.fragment], behind=self._clock > pull.clock)
        ended_s = self._timeline.now_s()
        self._blocked_s += ended_s - begun_s
        # the server says how long it held the answer back for others; the rest was the transfer. Waiting comes first,
        # so it is what the steps hide first
        held_s = max(reply.told.held_s for reply in replies)
        waited_s = min(max(0.0, held_s - (begun_s - pull.asked_s)), ended_s - begun_s)
        self.answer = self.answer._replace(waited_s=waited_s)
        self._timeline.wait(begun_s, begun_s + waited_s, clock=self._clock)
        self._timeline.communicate(begun_s + waited_s, ended_s, clock=self._clock)
        self._timeline.event("pull", at_s=ended_s, clock=self._clock, version=pull.fragment.version)

    def _merge(self, replies: Sequence[Reply], fragments: Sequence[StoreFragment], *, behind: bool = False) -> None:
        of = fragments[0].names if len(fragments) == 1 else None
        if behind:
            self._stored.merge_behind(replies, of=of)
        else:
            self._stored.merge(replies, of=of)
        for fragment in fragments:
            fragment.version = min(reply.version for reply in replies)
        self.answer = StoreAnswer(
            credit=min(reply.told.credit for reply in replies),
            waited_s=self.answer.waited_s,
            halted=any(reply.told.halted for reply in replies),
            samples=self._client.samples,
        )

    def flush(self) -> None:
        self.answer = self.answer._replace(waited_s=0.0)
        self._finish_pull()
        if self._records is not None and any(fragment.kept_back for fragment in self._fragments):
            self._records.settled(self._clock)
        for fragment in [*self._fragments[self._turn :], *self._fragments[: self._turn]]:
            if not self._unsent(fragment):
                continue
            if fragment.num_steps:
                self._push(fragment, in_full=True)
            else:
                self._send(fragment, in_full=True)
            self._begin_pull(fragment, clock=0, in_full=True)  # credit for a first step is always there
            self._finish_pull()

    def _unsent(self, fragment: StoreFragment) -> bool:
        """Tell whether something of it has yet to be sent, by any rank of an island: they push together."""
        island = self._replica.island
        return fragment.unsent if island is None else not island.all_agree(not fragment.unsent)

    def shared(self) -> State | None:
        """Return the shared state now, on the worker that evaluates.

        After `finish` that worker's optimizer has the servers' state, but for an island's, whose ranks have parts.
        """
        if not self._client.evaluates():
            return None
        if self._ended and self._policy.update == "gradient" and self._replica.island is None:
            self._stored.fetch_optimizer()
        return self._stored.copy(snapshot=None)

    def finish(self) -> None:
        self._ended = True
        self.flush()

    def snapshots(self) -> list[SharedState]:
        known = self._client.snapshots()
        fresh = known[self._fetched_snapshots :]
        self._fetched_snapshots = len(known)
        return [SharedState(one.samples, one.at_s, self._stored.copy(snapshot=one.number)) for one in fresh]

    def close(self) -> None:
        if self._records is not None:
            self._records.close(self._clock)
        self._stored.close()
        self._steps.close()
        self._client.own_since = 0
        self._gradients.clear()
