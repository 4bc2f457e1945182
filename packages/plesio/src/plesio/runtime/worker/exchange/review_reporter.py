"""Reports of a worker to what steers its policy: what its steps were, when a review is due, and the answers."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from plesio.core.records import from_values, to_values
from plesio.policies import Reviewed
from plesio.policies.adaptive.rate_limit import RateLimit
from plesio.policies.policy import NEVER
from plesio.protocol.to_server import Review, StageStop
from plesio.protocol.to_worker import Entered, ServerState, StageEnd, Steering
from plesio.runtime.worker.exchange.exchange import Exchange, StepProgress
from plesio.runtime.worker.exchange.group import LiveGroup
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.monitor import StepMonitor
from plesio.runtime.worker.rack_batches import Rack


class ServerSteering:
    """A worker's reports about itself, and its instructions.

    Args:
        check: Called while waiting; raises when the workers' group is no more.
    """

    def __init__(self, client: StoreClient, *, check: Callable[[], None]) -> None:
        self._client, self._check = client, check

    def review(self, review: Reviewed) -> None:
        self._client.send(Review(event=review))

    def steer(self) -> Steering:
        return self._client.await_message(Steering, check=self._check)

    def news(self, rack: Rack | None) -> Steering | None:
        """Return the answer to the last review, if it has come; not waited for. A rack's leader broadcasts it."""
        news = self._client.received(Steering) if rack is None or rack.leads else None
        return news if rack is None else rack.broadcast(news, Steering)

    def server_state(self) -> ServerState:
        """Fetch all pages of the state of server 0, after the order to take a checkpoint; this worker saves them."""
        pages = [self._client.await_message(ServerState)]
        while pages[-1].left:
            pages.append(self._client.await_message(ServerState))
        return replace(pages[-1], text="".join(page.text for page in pages))

    def enter_store(self, stop: StageStop) -> None:
        """Report that this worker stands still and the store has its state; return when all have reported so."""
        self._client.send(stop)
        self._client.await_message(Entered, check=self._check)

    def leave_store(self, stop: StageStop) -> StageEnd:
        """Report that this worker has handed in all it had; return when the server has decided how it goes on."""
        self._client.send(stop)
        return self._client.await_message(StageEnd)


class ReviewReporter:
    """The reviews of one worker.

    Args:
        limit: The largest learning rate that is allowed, so that none leaps; None is no limit.
        monitor: Gathers reviews; None if they are not read.
        first_review: Clock of the first review and the one from which its answer holds.
        began_slow: True if the first stage is under the policy for slow links.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: LiveGroup,
        channel: ServerSteering,
        timeline: WorkerTimeline,
        limit: RateLimit | None,
        monitor: StepMonitor | None,
        first_review: tuple[int, int],
        began_slow: bool,
    ) -> None:
        self._replica, self._group, self._channel, self._timeline = replica, group, channel, timeline
        self._limit, self._monitor = limit, monitor
        self._review, self._holds = first_review
        self._began_slow = began_slow
        self._awaits_news = False
        """The last review has not been answered."""

    def step(self, progress: StepProgress, exchange: Exchange) -> None:
        """Have a step exchanged, at the rate that is allowed, and report when a review is due."""
        user_rate = float(self._replica.optimizer.param_groups[0]["lr"])
        share = self._share_of(user_rate, clock=progress.clock)
        with self._replica.stepper.scaled_rate(share):
            exchange.step(progress)
        rate = share * user_rate
        if self._monitor is not None:
            self._monitor.step(progress, rate=rate)
        if progress.clock >= self._review:
            self._review, self._awaits_news = NEVER, True
            self._channel.review(self._seen(progress.clock, rate=rate))

    def _share_of(self, rate: float, *, clock: int) -> float:
        """Return the factor of the user's learning rate in this step, and record that it is held where it leaps."""
        if self._limit is None:
            return 1.0
        held_before, allowed = self._limit.holds, self._limit.allow(rate)
        if self._limit.holds and not held_before:
            self._timeline.event("hold", at_s=self._timeline.now_s(), clock=clock, rate=rate, allowed=allowed)
            self._timeline.meter.totals.fallbacks.append(
                f"at step {clock} the learning rate leapt to {rate:.4g}, above all earlier ones: it was held at "
                f"{allowed:.4g} and raised step by step while training bore it"
            )
        return allowed / rate if self._limit.holds else 1.0

    def _seen(self, clock: int, *, rate: float) -> Reviewed:
        if self._monitor is None:
            return Reviewed(worker=self._group.worker, clock=clock, samples=(), compute_s=(), blocked_s=())
        replica = self._replica
        seen = self._monitor.take(
            clock,
            learning_rate=rate,
            momentum=replica.stepper.momentum,
            normalises=replica.stepper.normalises,
            accumulates=replica.stepper.accumulates,
            shares_moments=replica.stepper.can_share_moments,
            writes=replica.changes.seen,
            parameters=list(replica.parameters.values()),
        )
        return replace(seen, began_slow=self._began_slow)

    def answer(self, clock: int) -> Steering | None:
        """Wait for the answer that holds from this clock on; None where none does."""
        if clock != self._holds:
            return None
        begun_s = self._timeline.now_s()
        steer = self._channel.steer()
        self._timeline.wait(begun_s, self._timeline.now_s(), clock=clock)
        assert steer.clock == clock, f"an answer for clock {steer.clock} at clock {clock}"
        self.go_on(steer)
        return steer

    def news(self, rack: Rack | None) -> Steering | None:
        """Return the answer to the last review, on the store, if it has come and was not given before."""
        if not self._awaits_news or (news := self._channel.news(rack)) is None:
            return None
        self._review, self._awaits_news = news.next_review, False
        self._learn(news)
        return news

    def go_on(self, steer: Steering) -> None:
        """Review next when an answer says, which all have."""
        self._review, self._holds, self._awaits_news = steer.next_review, steer.next_clock, False
        self._began_slow = False
        self._learn(steer)

    def _learn(self, steer: Steering) -> None:
        if steer.relearn and self._monitor is not None:
            self._monitor.relearn()

    def good(self) -> None:
        """Take the rates up to here for good ones: a review found nothing wrong."""
        if self._limit is not None:
            self._limit.good()

    def returned(self) -> None:
        """Judge rates anew: the run goes back to an earlier state."""
        if self._limit is not None:
            self._limit.returned()

    def forget(self) -> None:
        """Measure from here on: another stage begins."""
        if self._monitor is not None:
            self._monitor.forget()

    @property
    def clipped(self) -> str | None:
        return None if self._monitor is None else self._monitor.clipped

    def memory(self) -> dict[str, Any]:
        limit = {} if self._limit is None else {"limit": to_values(self._limit)}
        return ({} if self._monitor is None else {"monitor": self._monitor.own()}) | limit

    def go_on_from(self, memory: dict[str, Any]) -> None:
        if self._monitor is not None and "monitor" in memory:
            self._monitor.take_own(memory["monitor"])
            self._monitor.forget()
        if self._limit is not None and "limit" in memory:
            self._limit = from_values(memory["limit"], RateLimit)
