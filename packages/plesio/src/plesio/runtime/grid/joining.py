"""How a group gets into a grid that runs: notes on the job's board, and then the state of a group that is there.

The K workers of a group that is to join have the next K ranks of the job. Each leaves a note that it is here and waits.
The worker that collects sees that, and has a regrouping agreed (`plesio.runtime.grid.formation`). At its tick

1. all workers that are there tell the one that collects, over the links that they have, that they have come;
2. it asks the newcomers, and lets those groups in whose workers all answer;
3. it sends the others the newcomers. If one of those that are there is missing, the groups stay as they are;
4. all make new links, on which stage k of the first group sends the newcomers' stage k what it needs to go on.

A newcomer has the weights, buffers and optimizer state of then, and nothing under way.
"""

import contextlib
import io
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

import torch

from plesio.core.errors import ConfigError, TransportError
from plesio.core.mixing import Mixing
from plesio.policies.grid import GridSetting, StageState
from plesio.runtime.grid.collector import Collector
from plesio.runtime.grid.formation import Formation, GridPlace, GroupChange
from plesio.runtime.grid.messages import Incoming, Outgoing, PeerFailedError, as_tensor, as_text
from plesio.runtime.worker.exchange.group import CutOffError
from plesio.runtime.worker.exchange.links import Links, PeerGoneError
from plesio.runtime.worker.job_handle import Board, JobHandle
from plesio.runtime.worker.peer_watch import Watch

_log = logging.getLogger(__name__)

_HERE_TAG, _DECISION_TAG, _HANDOVER_TAG = 6, 7, 8
_LOOK_S = 0.2
"""How often the worker that collects looks for newcomers."""
_AHEAD = 2
"""So many groups are looked for at a time: one may never become whole."""
_ANSWER_S = 5.0
"""How long all wait for newcomers that had reported that they are here."""


class Door:
    """The door at which newcomers wait, seen from a worker on either side of it.

    Args:
        setting: The grid that the run begins with.
        step_s: Tells the mean seconds of a step so far.
    """

    def __init__(
        self, job: JobHandle, setting: GridSetting, *, step_s: Callable[[], float], device: torch.device
    ) -> None:
        self._job = job
        self._step_s = step_s
        self._board: Board = job.board()
        self._device = device
        self._setting = setting
        self._looked_s = float("-inf")
        self._done: set[int] = set()
        """Groups that have been let in or refused."""
        if job.place.rank == 0:
            number = 1 + int(self._board.read("grid") or -1)
            self._board.post(f"grid/{number}/setting", setting.spec)
            self._board.post("grid", str(number))

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, ("grid", self._board.read("grid"), *parts)))

    def waiting(self) -> tuple[int, ...]:
        """Return groups that are here and want to join; look for them once in a while."""
        now_s = self._job.clock.now_s()
        if now_s - self._looked_s < _LOOK_S:
            return ()
        self._looked_s = now_s
        undecided = list(islice((group for group in count(self._setting.groups) if not self._decided(group)), _AHEAD))
        return tuple(
            group
            for group in undecided
            if all(self._board.read(self._key("here", rank)) for rank in self._ranks(group))
        )

    def _decided(self, group: int) -> bool:
        """Return True if a group has been let in or refused, perhaps by a worker that collected before."""
        if group not in self._done and self._board.read(self._key("door", group)) is not None:
            self._done.add(group)
        return group in self._done

    def _ranks(self, group: int) -> range:
        return range(group * self._setting.stages, (group + 1) * self._setting.stages)

    def refuse(self, group: int, reason: str) -> None:
        self._board.post(self._key("door", group), json.dumps({"error": reason}))

    def invite(self, formation: Formation, due: GroupChange) -> dict[str, Any] | None:
        """Let those groups in that are due to join ``formation`` and still here.

        Returns:
            The message on it for all; None if no group comes.
        """
        for group in due.joined:
            self._board.post(self._key("asked", group), "")
        until_s = self._job.clock.now_s() + _ANSWER_S
        ranks = {group: self._ranks(group) for group in due.joined}
        # one stage that does not come keeps its whole group outside
        silent = {group: rank for group in due.joined for rank in ranks[group] if not self._answers(rank, until_s)}
        for group, rank in silent.items():
            _log.warning("worker %d was to join, and does not answer: its group stays outside", rank)
            self.refuse(group, f"worker {rank} does not answer, so its group cannot join; start another")
        coming = tuple(group for group in due.joined if group not in silent)
        if not coming:
            return None
        after = formation.after(replace(due, joined=coming))
        invitation = {
            "joined": coming,
            "groups": after.groups,
            "began": after.began,
            "generation": after.generation,
            "at": self._job.meeting(),
        }
        for group in coming:
            self._board.post(self._key("door", group), json.dumps(invitation))
        return invitation

    def _answers(self, rank: int, until_s: float) -> bool:
        left_s = max(0.0, until_s - self._job.clock.now_s())
        return self._board.await_any([self._key("answer", rank)], timeout_s=left_s) is not None

    def link(self, formation: Formation, *, at: str) -> tuple[Links, Watch]:
        """Return the links of all that are there from now on, and the watch that notices stopped ones.

        Raises:
            TransportError: Not all of them came to where they were to meet.
        """
        job = self._job
        try:
            job.regroup(
                formation.workers,
                at=at,
                generation=formation.generation,
                device_type=self._device.type,
                called_off=lambda: False,
            )
        except (CutOffError, RuntimeError) as error:
            raise TransportError(
                f"worker {job.place.rank} could not meet the others when a group joined: one of them was lost at that "
                f"moment ({str(error).splitlines()[0]})"
            ) from error
        return job.links(self._device), job.watch_peers(self._step_s)

    def enter(self) -> tuple[Collector, dict[str, Any]]:
        """Wait, as a newcomer, until the groups that are there let this worker's group in.

        Returns:
            The groups, its own among them, and what it goes on from.

        Raises:
            ConfigError: The run's grid is another, or takes no groups.
            TransportError: The run ends before that.
        """
        job, board, setting = self._job, self._board, self._setting
        rank, place = job.place.rank, GridPlace.of(job.place.rank, setting)
        if board.await_any(["grid"], timeout_s=None if math.isinf(job.meet_s) else job.meet_s) is None:
            raise TransportError(
                "the job that this worker joins runs no grid; start it with the script that the job runs"
            )
        running = board.read(self._key("setting"))
        if running != setting.spec:
            raise ConfigError(f"the grid that runs is {running}, and this worker has {setting.spec}; write the same")
        first, last = self._ranks(place.group)[0], self._ranks(place.group)[-1]
        _log.info("workers %d to %d are group %d, which joins when all of them are here", first, last, place.group)
        board.post(self._key("here", rank), "1")
        asked, door, ended = self._key("asked", place.group), self._key("door", place.group), self._key("ended")
        if board.await_any([door, asked, ended]) == asked:
            board.post(self._key("answer", rank), "")
        if board.await_any([door, ended]) == ended:
            raise TransportError("the run ended before this worker's group could join it")
        invitation = json.loads(board.read(door) or "")
        if "error" in invitation:
            raise ConfigError(invitation["error"])
        groups = tuple(invitation["groups"])
        formation = Formation(
            setting=replace(setting, groups=len(groups), mixing=Mixing.on(setting.mixing.name, len(groups))),
            groups=groups,
            generation=invitation["generation"],
            began=invitation["began"],
        )
        links, watch = self.link(formation, at=invitation["at"])
        try:
            [sent], _ = Incoming(links, formation.worker(groups[0], place.stage), _HANDOVER_TAG).take(more=False)
        except (PeerGoneError, PeerFailedError) as error:
            raise TransportError(f"{error}: this worker's group could not be told what to go on from") from None
        file = io.BytesIO(sent.cpu().numpy().tobytes())
        past: dict[str, Any] = torch.load(file, map_location=self._device, weights_only=True)
        return Collector(links, rank, formation, watch, num_gathered=past["gathered"]), past

    def close(self) -> None:
        """Close the door at the run's end: no group can join it any more."""
        self._board.post(self._key("ended"), "")


def meet_all(
    links: Links, *, rank: int, workers: Sequence[int], decide: Callable[[], dict[str, Any] | None]
) -> dict[str, Any] | None:
    """Let the first of ``workers`` decide when all have come; returns the decision on all, None if one is gone."""
    first, *others = workers
    if rank != first:
        try:
            Outgoing(links, first, _HERE_TAG).send([])
            [received], _ = Incoming(links, first, _DECISION_TAG).take(more=False)
        except (PeerGoneError, PeerFailedError):
            return None
        decided: dict[str, Any] | None = json.loads(as_text(received))
        return decided
    try:
        for other in others:
            Incoming(links, other, _HERE_TAG).take(more=False)
        decided = decide()
    except (PeerGoneError, PeerFailedError):
        decided = None
    message = as_tensor(json.dumps(decided))
    for other in others:
        with contextlib.suppress(PeerGoneError):  # its loss is noticed by those who mix with it
            Outgoing(links, other, _DECISION_TAG).deliver([message])
    return decided


def hand_over(links: Links, values: Mapping[str, Any], *, to: int) -> None:
    file = io.BytesIO()
    torch.save(_of_newcomer(values), file)
    Outgoing(links, to, _HANDOVER_TAG).deliver([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)])


def _of_newcomer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of what a worker remembers that is not its own."""
    stage = {**values["stage"], "gradients": {}, "kept": {}}
    state = StageState(**values["machine"])
    dealt, left_out, _, sizes, _ = values["tally"]
    return {
        **values,
        "stage": stage,
        "machine": {name: getattr(state.of_newcomer(), name) for name in StageState.__slots__},
        "column": None,
        "mixer": None,
        "tally": [dealt, left_out, {}, [[0, of_all, without] for _, of_all, without in sizes], []],
        "random": None,
        "report": {},
        "losses": [],
        "shots": [[samples, at_s, [], dealt] for samples, at_s, _, dealt in values["shots"]],
    }
