"""Does a schedule's actions: passes, messages, updates and mixings; takes down where the time goes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from plesio.core.clock import TrainingClock
from plesio.policies.grid import (
    Action,
    Backward,
    BeginMixing,
    EndMixing,
    Forward,
    GridSetting,
    StageMachine,
    StageState,
    Update,
)
from plesio.runtime.grid.column import Column
from plesio.runtime.grid.formation import News
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.grid.stage import GridStage
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.pacing import Pacer

_BACKWARD_SHARE = 2 / 3
"""Share of a step's time: a backward pass has two products of matrices for each one of the forward pass."""


@dataclass(slots=True)
class Size:
    """Samples of a micro-batch: this group's, those of all groups, and those of lost ones that do not count."""

    own: int
    of_all: int
    left_out: int = 0


@dataclass(slots=True)
class Tally:
    """A worker's counts.

    Attributes:
        dealt: Samples of all groups in the micro-batches whose gradients have been applied here: alike on all workers
            after equally many.
        left_out: Those among them of groups that were lost before they had trained on them.
        staleness: How many backward passes had which, in updates.
        sizes: Of the micro-batches under way.
        losses: Of micro-batches that have not been reported.
    """

    dealt: int = 0
    left_out: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    sizes: list[Size] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples of all groups whose gradients have been applied here, as far as is known."""
        return self.dealt - self.left_out

    def leave_out(self, missing: Mapping[int, int], *, given: int) -> None:
        """Leave out the samples of lost groups that had not trained on them, by micro-batch; ``given`` were given."""
        first = given - len(self.sizes)
        for number, samples in missing.items():
            if number < first:
                self.left_out += samples
            else:
                self.sizes[number - first].left_out += samples

    def state(self) -> list[Any]:
        sizes = [[size.own, size.of_all, size.left_out] for size in self.sizes]
        return [self.dealt, self.left_out, dict(self.staleness), sizes, list(self.losses)]

    def load(self, state: list[Any]) -> None:
        self.dealt, self.left_out, staleness, sizes, losses = state
        self.staleness, self.losses = Counter(staleness), list(losses)
        self.sizes = [Size(*size) for size in sizes]


class StageWorker:
    """One worker at work; composed once, at the first step.

    Args:
        mixer: Its neighbours in other groups; None with one group.
        pacer: Makes passes take their time; None lets them take as long as they do.
    """

    def __init__(
        self,
        stage: GridStage,
        *,
        tally: Tally,
        column: Column,
        mixer: Mixer | None,
        news: News,
        pacer: Pacer | None,
        timeline: WorkerTimeline,
        training: TrainingClock,
    ) -> None:
        self.stage = stage
        self.machine = StageMachine(stage.setting, stage=stage.number)
        self.column = column
        self.mixer = mixer
        self.news = news
        self.tally = tally
        self._pacer = pacer
        self._timeline = timeline
        self._training = training
        self._marked_s = timeline.now_s()
        self._most_held = 0

    def mark(self) -> None:
        """Count what was done since the last mark as nothing."""
        self._marked_s = self._timeline.now_s()

    def tick(self, inputs: Sequence[Tensor], target: Any, *, of_all: int, more: bool) -> float | None:
        """Do what the schedule has for the next micro-batch.

        ``of_all`` are the samples of all groups' micro-batches of this tick; ``more`` tells whether another is known to
        follow.

        Returns:
            The micro-batch's loss, on the last stage.
        """
        self.tally.sizes.append(Size(len(inputs[0]), of_all))
        actions = self.machine.give()
        self.news.passed(self.machine.given)
        due = self.news.regrouping
        more = more and (due is None or due.tick > self.machine.given)  # it may come over other links
        if self.column.behind is not None and any(isinstance(action, Backward) for action in actions):
            self.column.behind.expect()
        loss = None
        for action in actions:
            if isinstance(action, Forward):
                loss = self._forward(action, inputs, target, more=more)
            else:
                self._do(action)
        return loss

    def leave(self, reason: str) -> None:
        self.column.leave(reason)
        if self.mixer is not None:
            self.mixer.leave(reason)

    def end(self, *, between: Callable[[], None]) -> None:
        """Go back with the micro-batches under way, and end what is being mixed; call ``between`` before each."""
        for action in self.machine.end():
            if isinstance(action, Backward) or (isinstance(action, Update) and not action.num_micro_batches):
                between()
            self._do(action)

    def state(self) -> dict[str, Any]:
        """Return all that this worker remembers after a tick, plain; wait for what the others have sent by it."""
        return {
            "stage": self.stage.state(),
            "machine": asdict(self.machine.state()),
            "column": self.column.state(gradients_on_way=self.gradients_on_way),
            "mixer": None if self.mixer is None else self.mixer.state(),
            "tally": self.tally.state(),
        }

    @property
    def gradients_on_way(self) -> int:
        """Gradients on their way from the stage behind, once it has been given as many micro-batches as this one."""
        return max(0, self.machine.returned_behind - self.machine.returned)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave; of a newcomer, nothing is under way."""
        self.stage.load(state["stage"])
        self.machine = self.machine.at(StageState(**state["machine"]))
        if state["column"] is not None:
            self.column.load(state["column"])
        if self.mixer is not None:
            if state["mixer"] is None:
                self.mixer.meet()
            else:
                self.mixer.load(state["mixer"])
        self.tally.load(state["tally"])
        for tick in state.get("saves", ()):
            self.news.save(tick)

    def end_mixings(self) -> None:
        """Add at once what the mixings under way come to; all groups do so after the same tick."""
        for version in self.machine.mixing:
            self._end_mixing(version)

    def regroup(self, setting: GridSetting, *, column: Column, mixer: Mixer | None, missing: Mapping[int, int]) -> None:
        """Go on in a grid of other groups; no mixing is under way.

        ``missing`` are the samples, by micro-batch, that lost groups were given and had not trained on.
        """
        self.tally.leave_out(missing, given=self.machine.given)
        self.machine = self.machine.regrouped(setting)
        self.column, self.mixer = column, mixer

    def _do(self, action: Action) -> None:
        match action:
            case Backward():
                self._backward(action)
            case Update():
                self._update(action)
            case BeginMixing(version=version):
                assert self.mixer is not None, "there are other groups"
                self.mixer.begin(version)
            case EndMixing(version=version):
                self._end_mixing(version)
            case Forward():
                raise AssertionError("a pass that begins a tick")

    def _forward(self, action: Forward, inputs: Sequence[Tensor], target: Any, *, more: bool) -> float | None:
        if self.column.before is not None:
            self._computed()
            inputs, header = self.column.before.take(more=more)
            self.news.receive(header)
            self._waited()
        started_s = self._timeline.now_s()
        outputs, loss = self.stage.forward(action, inputs, target)
        self._note_held(started_s)
        self._pace(action.micro_batch, part=1 - _BACKWARD_SHARE, started_s=started_s)
        if self.column.onward is not None:
            self.column.onward.send(outputs, **self.news.header())
        if loss is not None:
            self.tally.losses.append(loss)
        return loss

    def _pace(self, micro_batch: int, *, part: float, started_s: float) -> None:
        """Have a pass take its part of the time that a step of the whole network would."""
        if self._pacer is not None:
            share = part * (1 / self.stage.setting.stages)
            self._pacer.pace(micro_batch, started_s=started_s, share=share)

    def _note_held(self, at_s: float) -> None:
        count = len(self.stage.kept) + len(self.stage.snapshots)
        if count > self._most_held:
            self._most_held = count
            self._timeline.event("held", at_s=at_s, clock=self.machine.version, **asdict(self.stage.held()))

    def _backward(self, action: Backward) -> None:
        gradients: list[Tensor] = []
        if self.column.behind is not None:
            self._computed()
            gradients, header = self.column.behind.take(more=self.machine.given > action.micro_batch + 1)
            self.news.receive(header)
            self._waited()
        started_s = self._timeline.now_s()
        sent = self.stage.backward(action, gradients)
        self._pace(action.micro_batch, part=_BACKWARD_SHARE, started_s=started_s)
        if self.column.back is not None:
            self.column.back.send(sent, **self.news.header())
        self.tally.staleness[action.staleness] += 1
        self._timeline.event(
            "backward",
            at_s=started_s,
            clock=self.machine.version,
            micro_batch=action.micro_batch,
            staleness=action.staleness,
        )

    def _update(self, action: Update) -> None:
        tally, timeline, began_s = self.tally, self._timeline, self._marked_s
        timeline.ready(timeline.now_s(), clock=action.version)
        self.stage.update(action)
        self._computed()
        count = action.num_micro_batches + action.skipped
        sizes = tally.sizes[:count]
        del tally.sizes[:count]
        samples = sum(size.own for size in sizes)
        tally.dealt += sum(size.of_all for size in sizes)
        tally.left_out += sum(size.left_out for size in sizes)
        if not action.num_micro_batches:
            return  # others have made an update here
        losses = tally.losses[: action.num_micro_batches]
        del tally.losses[: action.num_micro_batches]
        timeline.step(
            clock=action.version,
            samples=samples if self.stage.is_first else 0,
            duration_s=timeline.now_s() - began_s,
            loss=sum(losses) / len(losses) if losses else None,
            at_s=self._training.elapsed_s(),
        )

    def _end_mixing(self, version: int) -> None:
        assert self.mixer is not None, "there are other groups"
        self._computed()
        self.mixer.end(version)
        self._waited()
        at_s = self._timeline.now_s()
        self._timeline.event("mix", at_s=at_s, clock=version, disagreement=self.mixer.disagreement)

    def _computed(self) -> None:
        """Count what was done since the last mark as computing."""
        now_s = self._timeline.now_s()
        self._timeline.compute(self._marked_s, now_s, clock=self.machine.version)
        self._marked_s = now_s

    def _waited(self) -> None:
        """Count what was done since the last mark as waiting for a message."""
        now_s = self._timeline.now_s()
        self._timeline.wait(self._marked_s, now_s, clock=self.machine.version)
        self._marked_s = now_s
