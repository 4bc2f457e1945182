"""The meeting of a job's processes, at the key-value store of the program that started them."""

import itertools
import time
import uuid
from collections.abc import Callable, Sequence

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import ConfigError, TransportError
from plesio.runtime.job_store import meeting_store_of
from plesio.runtime.transport import JobKeys
from plesio.runtime.transport.job_secret import (
    SECRET_VARIABLE,
    given_secret,
    may_publish,
    new_job_secret,
    secret_of_user,
    signed,
)
from plesio.runtime.worker.environment import (
    BEGUN_KEY,
    CURRENT_JOB,
    ENDED_KEY,
    FINISHED_WITHOUT_KEY,
    NAME_KEY,
    WorkerPlace,
)

_LOOK_S = 0.01
"""How often a process looks for a key that it waits for."""
_NUMBERS = itertools.count()
"""Numbers of the jobs that this process has been in."""


class Rendezvous:
    """One process's part in the meeting.

    Args:
        meet_s: How long the processes wait for each other.
        check: Called while this process waits; it raises where that has become vain.

    Raises:
        TransportError: The key-value store cannot be reached, or its port is in use.
        ConfigError: The processes have no secret in common.
    """

    def __init__(self, place: WorkerPlace, *, meet_s: float, check: Callable[[], None]) -> None:
        self._place = place
        self.meet_s = meet_s
        self._check = check
        self._clock: Clock = MonotonicClock()
        given = given_secret(num_hosts=place.num_hosts)
        self._starter, self.store = self._meet()
        """The starter's store, and this job's own part of it."""
        if place.first:
            self.store.set("job", uuid.uuid4().hex)
        self.job = self.get("job")
        """Name of the job."""
        self.starter = self._starter.get(NAME_KEY).decode() if self._starter.check([NAME_KEY]) else None
        """Name that the job's launcher gave it, if it did."""
        self.secret = given or self._agree_on_secret()
        """Text that only the processes of the job have."""
        self._check_secret(self.secret)

    def _meet(self) -> tuple[Store, Store]:
        """Connect to the store of the workers' starter, and return it with this job's part of it."""
        place = self._place
        store = meeting_store_of(place, timeout_s=self.meet_s, whom="the other workers")
        prefix, current = f"plesio/{place.restart}", CURRENT_JOB.format(restart=place.restart)
        # Jobs follow each other on one store when sessions do: each has its number, the same in all its processes.
        try:
            number = int(store.get(current)) if place.late else next(_NUMBERS)
        except RuntimeError as error:
            raise TransportError(f"no job is running at {place.address}:{place.port} that could be joined") from error
        if place.first:
            store.set(current, str(number))
        meeting = PrefixStore(f"{prefix}/{number}", store)
        if place.leads:
            meeting.set(f"here/{place.rank}", "")
        return store, meeting

    def _agree_on_secret(self) -> str:
        if not may_publish():
            return secret_of_user(self.job)
        if self._place.first:
            self.store.set("secret", new_job_secret())
        return self.get("secret")

    def _check_secret(self, secret: str) -> None:
        public = JobKeys.derive(secret).server.public.decode()
        if self._place.first:
            self.store.set("server_key", public)
        elif self.get("server_key") != public:
            raise ConfigError(
                f"worker {self._place.rank} has another secret than worker 0: it is on another host, or another "
                f"user's; set {SECRET_VARIABLE} to the same text for all workers (openssl rand -hex 32)"
            )

    def missing(self) -> list[int]:
        """List the workers that the job should begin with and that have not come."""
        return [rank for rank in range(self._place.num_workers) if not self.store.check([f"here/{rank}"])]

    def assure_all_come(self) -> None:
        """Raise if a worker has ended that the others still wait for.

        Raises:
            TransportError: A worker that the job should begin with has ended before it joined.
        """
        if self._place.late:
            return  # they have come, and may be at their end, and the starter's store with them
        if self._place.agent_hosts_store and self._starter.check([ENDED_KEY]):
            ended = {int(rank) for rank in self._starter.get(ENDED_KEY).decode().split(",") if rank}
            if gone := sorted(ended & set(self.missing())) if ended else []:
                raise TransportError(f"worker {' and worker '.join(map(str, gone))} ended before it joined")

    def get(self, key: str) -> str:
        """Return the text of this key, when it is there."""

        def wanted() -> str:
            missing = self.missing()
            come = f"of the job's workers {missing} have not come; " if missing else ""
            return f"{key}; {come}is worker 0 running, and under the same MASTER_PORT?"

        self.wait_for([key], wanted=wanted)
        return str(self.store.get(key), encoding="utf-8")

    def wait_for(self, keys: list[str], *, wanted: Callable[[], str]) -> None:
        """Return when all these keys are there; ``wanted`` tells, in an error, what this worker waits for."""
        deadline_s = self._clock.now_s() + self.meet_s
        while not self.has(keys):
            self.assure_all_come()
            self._check()
            if self._clock.now_s() > deadline_s:
                raise TransportError(f"worker {self._place.rank} waited {self.meet_s:g} s for {wanted()}")
            self._clock.sleep_s(_LOOK_S)

    def has(self, keys: list[str]) -> bool:
        """Tell whether all these keys are there."""
        try:
            return bool(self.store.check(keys))
        except RuntimeError as error:
            waiting = f"worker {self._place.rank} waited for {keys[0]}"
            raise TransportError(f"the job's store is gone, while {waiting}") from error

    def begun(self) -> None:
        """Tell the starter of the workers that a run has begun, so it was not refused."""
        if self._place.first and not self._starter.check([BEGUN_KEY]):
            self._starter.set(BEGUN_KEY, str(time.time()))

    def finished_without(self, lost: Sequence[int]) -> None:
        """Tell the launcher that others finished the run of these workers: it exits as if all had."""
        if self._place.agent_hosts_store:
            signature = signed(",".join(map(str, lost)), secret=self.secret, job=self.starter or "")
            self._starter.set(FINISHED_WITHOUT_KEY, signature)
