"""What a worker does with its schedule's actions: passes, messages, updates and mixings, and where the time goes."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from plesio.core.clock import TrainingClock
from plesio.policies.grid import Action, Backward, BeginMixing, EndMixing, Forward, StageMachine, StageState, Update
from plesio.runtime.grid.column import Column
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.grid.records import Network
from plesio.runtime.grid.stage import Stage
from plesio.runtime.grid.stage_pacing import StagePacer
from plesio.runtime.worker.timeline import Timeline

__all__ = ["Composed", "StageWorker", "Tally"]


@dataclass(slots=True)
class Tally:
    """What a worker counts.

    Attributes:
        samples: Of all groups whose gradients have been applied here.
        dealt: The same as if no group had been lost: alike on all workers after equally many micro-batches.
        staleness: How many backward passes had which, in updates.
        sizes: Samples of the micro-batches under way: this group's and those of all.
        losses: Of micro-batches that have not been reported.
    """

    samples: int = 0
    dealt: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


class StageWorker:
    """One worker at work; composed once, at the first step.

    Args:
        stage: Its layers and optimizer.
        machine: Its schedule.
        column: Its neighbours in the group.
        mixer: Its neighbours in other groups; None with one group.
        pacer: Makes passes take their time; None lets them take as long as they do.
        timeline: Takes down where the time goes.
        training: Tells for how long there has been training.
    """

    def __init__(
        self,
        stage: Stage,
        machine: StageMachine,
        *,
        column: Column,
        mixer: Mixer | None,
        pacer: StagePacer | None,
        timeline: Timeline,
        training: TrainingClock,
    ) -> None:
        self.stage = stage
        self.machine = machine
        self.column = column
        self.mixer = mixer
        self.tally = Tally()
        self.saves: list[int] = []
        """Ticks after which checkpoints are to be taken, as far as has been heard."""
        self._pacer = pacer
        self._timeline = timeline
        self._training = training
        self._marked_s = timeline.now_s()
        self._most_held = 0

    @property
    def save_at(self) -> int | None:
        """The last of `saves`."""
        return self.saves[-1] if self.saves else None

    def mark(self) -> None:
        """What was done since the last mark is counted as nothing."""
        self._marked_s = self._timeline.now_s()

    def tick(self, inputs: Sequence[Tensor], target: Any, *, of_all: int, more: bool, num_groups: int) -> float | None:
        """Do what the schedule has for the next micro-batch.

        Args:
            inputs: What the first stage is given.
            target: What the last stage's loss is given.
            of_all: Samples of all groups' micro-batches of this tick.
            more: Whether another micro-batch is known to follow.
            num_groups: Groups that are there.

        Returns:
            The micro-batch's loss, on the last stage.
        """
        self.tally.sizes.append((len(inputs[0]), of_all))
        actions = self.machine.give()
        if self.column.behind is not None and any(isinstance(action, Backward) for action in actions):
            self.column.behind.expect()
        loss = None
        for action in actions:
            if isinstance(action, Forward):
                loss = self._forward(action, inputs, target, more=more)
            else:
                self._do(action, num_groups=num_groups)
        return loss

    def end(self, *, num_groups: int, between: Callable[[], None]) -> None:
        """Go back with the micro-batches under way, and end what is being mixed; call ``between`` before each."""
        for action in self.machine.end():
            if isinstance(action, Backward):
                between()
            self._do(action, num_groups=num_groups)

    def state(self) -> dict[str, Any]:
        """All that this worker remembers after a tick, plain; waits for what the others have sent by it."""
        behind = max(0, self.machine.returned_behind - self.machine.returned)
        return {
            "stage": self.stage.state(),
            "machine": asdict(self.machine.state()),
            "column": self.column.state(gradients_on_way=behind),
            "mixer": None if self.mixer is None else self.mixer.state(),
            "tally": [
                self.tally.samples,
                self.tally.dealt,
                dict(self.tally.staleness),
                [list(sizes) for sizes in self.tally.sizes],
                list(self.tally.losses),
            ],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.stage.load(state["stage"])
        self.machine = self.machine.at(StageState(**state["machine"]))
        self.column.load(state["column"])
        if self.mixer is not None:
            self.mixer.load(state["mixer"])
        samples, dealt, staleness, sizes, losses = state["tally"]
        self.tally = Tally(samples, dealt, Counter(staleness), [(own, of_all) for own, of_all in sizes], list(losses))

    def _do(self, action: Action, *, num_groups: int) -> None:
        match action:
            case Backward():
                self._backward(action)
            case Update():
                self._update(action, num_groups=num_groups)
            case BeginMixing(version=version):
                assert self.mixer is not None, "there are other groups"
                self.mixer.begin(version, save_at=self.save_at)
            case EndMixing(version=version):
                self._end_mixing(version)
            case Forward():
                raise AssertionError("a pass that begins a tick")

    def _forward(self, action: Forward, inputs: Sequence[Tensor], target: Any, *, more: bool) -> float | None:
        if self.column.before is not None:
            self._computed()
            inputs, header = self.column.before.take(more=more)
            self.hear(header.get("save_at"))
            self._waited()
        started_s = self._timeline.now_s()
        outputs, loss = self.stage.forward(action, inputs, target)
        self._note_held(started_s)
        if self._pacer is not None:
            self._pacer.pace(action.micro_batch, backward=False, started_s=started_s)
        if self.column.onward is not None:
            self.column.onward.send(outputs, save_at=self.save_at)
        if loss is not None:
            self.tally.losses.append(loss)
        return loss

    def _note_held(self, at_s: float) -> None:
        """Take down what the stage keeps, whenever that is more than before."""
        count = len(self.stage.kept) + len(self.stage.snapshots)
        if count > self._most_held:
            self._most_held = count
            self._timeline.event("held", at_s=at_s, clock=self.machine.version, **asdict(self.stage.held()))

    def hear(self, save_at: object) -> None:
        """Another worker has said after which tick a checkpoint is to be taken."""
        if isinstance(save_at, int) and save_at > (self.save_at or 0):
            self.saves = [*(tick for tick in self.saves if tick >= self.machine.given), save_at]

    def _backward(self, action: Backward) -> None:
        gradients: list[Tensor] = []
        if self.column.behind is not None:
            self._computed()
            gradients, _ = self.column.behind.take(more=self.machine.given > action.micro_batch + 1)
            self._waited()
        started_s = self._timeline.now_s()
        sent = self.stage.backward(action, gradients)
        if self._pacer is not None:
            self._pacer.pace(action.micro_batch, backward=True, started_s=started_s)
        if self.column.back is not None:
            self.column.back.send(sent)
        self.tally.staleness[action.staleness] += 1
        self._timeline.event(
            "backward",
            at_s=started_s,
            clock=self.machine.version,
            micro_batch=action.micro_batch,
            staleness=action.staleness,
        )

    def _update(self, action: Update, *, num_groups: int) -> None:
        tally, timeline, began_s = self.tally, self._timeline, self._marked_s
        timeline.ready(timeline.now_s(), clock=action.version)
        self.stage.update(action)
        self._computed()
        sizes = tally.sizes[: action.num_micro_batches]
        del tally.sizes[: action.num_micro_batches]
        samples, of_all = (sum(column) for column in zip(*sizes, strict=True))
        is_whole = self.mixer is None or not self.mixer.lost
        tally.samples += of_all if is_whole else samples * num_groups
        tally.dealt += of_all
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
        self.hear(self.mixer.end(version))
        self._waited()
        at_s = self._timeline.now_s()
        self._timeline.event("mix", at_s=at_s, clock=version, disagreement=self.mixer.disagreement)

    def _computed(self) -> None:
        """What was done since the last mark was computing."""
        now_s = self._timeline.now_s()
        self._timeline.compute(self._marked_s, now_s, clock=self.machine.version)
        self._marked_s = now_s

    def _waited(self) -> None:
        """What was done since the last mark was waiting for a message."""
        now_s = self._timeline.now_s()
        self._timeline.wait(self._marked_s, now_s, clock=self.machine.version)
        self._marked_s = now_s


@dataclass(frozen=True, slots=True)
class Composed:
    """What is put together at the first step: a worker's own part, and the whole network."""

    worker: StageWorker
    network: Network
