"""The store as one exchange among others: builds it in the middle of a run, from replicas that are equal."""

from collections.abc import Callable

from plesio.policies import Policy
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.worker.exchange.collective import CollectiveExchanges
from plesio.runtime.worker.exchange.exchange import Gauge
from plesio.runtime.worker.exchange.rack_store import RackStoreExchange
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.store import StoreExchange
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worker.timeline import WorkerTimeline

__all__ = ["StageExchange", "StoreExchanges"]

StageExchange = StoreExchange | RackStoreExchange
"""A worker's by itself, or as one of a rack."""


class StoreExchanges:
    """Builds one exchange after another for one worker.

    Args:
        replica: The worker's.
        client: Connections to the servers.
        timeline: Takes waiting and communicating.
        gauge: Shown this worker's own gradients.
        exchanges: Builds what goes on within a rack, where racks share the store.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        client: StoreClient,
        timeline: WorkerTimeline,
        gauge: Gauge | None,
        exchanges: CollectiveExchanges,
    ) -> None:
        self._replica = replica
        self._client = client
        self._layout = SliceLayout.of(replica.tensors.exchanged(), num_servers=len(client.endpoints))
        self._timeline = timeline
        self._gauge = gauge
        self._exchanges = exchanges

    def begin(self, policy: Policy, *, clock: int, leads: bool, enter: Callable[[], None]) -> StageExchange:
        """Begin the exchange of ``policy`` from ``clock`` on.

        Args:
            policy: A policy on the store.
            clock: The clock of all workers.
            leads: True if this worker offers its state to the servers.
            enter: Returns when that has been done, and all are there.
        """
        store = StoreExchange(
            self._replica,
            policy=policy,
            client=self._client,
            layout=self._layout,
            timeline=self._timeline,
            gauge=self._gauge,
        )
        exchange: StageExchange = store
        if policy.inner is not None:
            exchange = self._exchanges.build_on_store(policy.inner, store)
        begun_s = self._timeline.now_s()
        if leads:
            store.stored.offer()
        entered_s = self._timeline.now_s()
        enter()
        waited_s = self._timeline.now_s()
        exchange.begin(clock)
        self._timeline.communicate(begun_s, entered_s, clock=clock)
        self._timeline.wait(entered_s, waited_s, clock=clock)
        self._timeline.communicate(waited_s, self._timeline.now_s(), clock=clock)
        return exchange
