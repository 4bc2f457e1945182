"""The script of a worker in a schedule, from its `Join` to its `Goodbye`."""

from msgspec.structs import replace

from plesio.policies import parse_policy
from plesio.policies.policy import NEVER
from plesio.protocol.figures import Report
from plesio.protocol.plans import Remainder
from plesio.protocol.positions import Position, common_clock, common_plan
from plesio.protocol.to_server import Goodbye, Leave, PositionReport, Regrouped, Review, StageStop
from plesio.protocol.to_worker import Entered, MayLeave, Regroup, ServerState, StageEnd, Start, Steering, Stop
from support.schedules.leasing import Loop
from support.schedules.worker import CutOffError, EndedError, Script, Worker


def live(me: Worker) -> Script[None]:
    """All of it."""
    error = None
    yield lambda: True
    me.said.append(me.join())
    try:
        start = yield from me.receive(Start)
        yield from _train(me, start)
        while me.ended_with is None:
            yield from _leave(me)
    except EndedError as ended:
        error = me.ended_with = str(ended)
    status = "finished" if error is None else "failed"
    me.said.append(Goodbye(status=status, error=error, report=Report()))  # type: ignore[arg-type]


def _leave(me: Worker) -> Script[None]:
    try:
        if me.no_group:
            raise CutOffError
        if not me.on_store and me.settled < me.clock:
            yield from me.meet("finish", me.clock)
            me.settled = me.clock
        me.said.append(Leave())
        yield from me.receive(MayLeave, collective=me.policy.exchange == "collective")
    except CutOffError:
        yield from _regroup(me, agreed=False)
        return
    me.ended_with = "finished"


def _train(me: Worker, start: Start) -> Script[None]:
    me.clock = me.settled = start.clock
    me.begun = me.clock + 1
    try:
        if me.no_group:
            raise CutOffError
        if me.policy.adapts and me.stage.exchange == "store":
            yield from _enter_store(me, end=None)
    except CutOffError:
        yield from _regroup(me, agreed=False)
    if me.policy.exchange == "store" and me.world.speaker(me.number) is me:
        yield from me.pull(after=me.clock, clock=me.clock)
    while me.plan < me.world.setting.num_plans:
        me.in_loop = True
        over = (yield from _on_store(me)) if me.on_store else (yield from _round(me))
        if over:
            me.plan, me.left, me.in_loop = me.plan + 1, me.figures.whole(), False


# On the store


def _on_store(me: Worker) -> Script[bool]:
    """A loop over the data there; returns whether it is over, or else the stage is."""
    speaker = me.world.speaker(me.number)
    if speaker is me:
        end = yield from Loop(me).run()
        me.shared[me.stage_number].append(None)
    else:
        end = yield from _follow(me, speaker)
    if end is None:
        return True
    assert end.steer is not None
    me.samples, me.left = end.samples, me.figures.whole() if end.remainder is None else end.remainder
    me.clock = me.settled = me.reviewed_clock = end.steer.clock
    me.begun = me.clock + 1
    try:
        yield from _change(me, end.steer, end=end)
        if me.no_group:
            raise CutOffError
    except CutOffError:
        yield from _regroup(me, agreed=False)
    return False


def _follow(me: Worker, speaker: Worker) -> Script[StageEnd | None]:
    """Stop where its rack does, and end the loop where that does (None)."""
    heard, told = me.shared[me.stage_number], speaker.shared[me.stage_number]
    while True:
        yield lambda: len(told) > len(heard)
        stop = told[len(heard)]
        heard.append(stop)
        if stop is None:
            return None
        me.said.append(stop)
        end = yield from me.receive(StageEnd)
        if end.steer is not None:
            return end


def _enter_store(me: Worker, *, end: StageEnd | None) -> Script[None]:
    if me.number == (me.members[0] if end is None else end.leader):
        yield from me.offer()
    if me.clock == 0 and not me.in_loop:
        stop = StageStop(clock=0)
    else:
        left = me.left if me.in_loop else Remainder(num_samples=me.figures.num_samples, num_fresh=0)
        plan = me.plan if me.in_loop else me.plan - 1
        stop = StageStop(clock=me.clock, plan=plan, figures=me.figures, remainder=left, samples=me.samples)
    me.said.append(stop)
    yield from me.receive(Entered, collective=True)
    me.on_store, me.stage_number = True, me.world.num_stages
    me.pushed_clock, me.num_steps, me.num_samples, me.version = me.clock, 0, 0, 0
    if me.world.speaker(me.number) is me:
        yield from me.pull(after=me.clock, clock=me.clock)


# In a collective


def _round(me: Worker) -> Script[bool]:
    """A step in a collective; returns whether the loop over the data is over."""
    num, left = len(me.members), len(me.left)
    if left < num and not me.no_group:
        return True
    taken = num * me.figures.batch_size
    taken = left if left - taken < num else taken
    try:
        if me.no_group:
            raise CutOffError
        yield from _step(me, num_samples=taken)
        if me.cut_off:
            raise CutOffError
    except CutOffError:
        yield from _regroup(me, agreed=False)
    try:
        agreed = yield from _stops(me)
    except CutOffError:
        agreed = False
        yield from _regroup(me, agreed=False)
    if agreed:
        yield from _regroup(me, agreed=True)
    return False


def _step(me: Worker, *, num_samples: int) -> Script[None]:
    clock = me.clock + 1
    merged = me.stage.merges_at(clock)
    if merged is None:
        yield lambda: True
    else:
        yield from me.meet("step", clock)
        me.settled = max(me.settled, merged)
    me.clock, me.samples, me.left = clock, me.samples + num_samples, me.left.after(num_samples)
    me.own += num_samples // len(me.members)
    if clock >= me.review:
        me.review = NEVER
        me.said.append(Review(event=me.review_of()))
    if clock == me.holds:
        steer = yield from me.receive(Steering, collective=True)
        assert steer.clock == clock, f"an answer for clock {steer.clock} at clock {clock}"
        if parse_policy(steer.policy) != me.stage or steer.save:
            yield from _change(me, steer, end=None)
        else:
            me.steer(steer)


def _change(me: Worker, steer: Steering, *, end: StageEnd | None) -> Script[None]:
    me.steer(steer)
    me.awaits_news = me.on_store = me.halted = False
    me.controls[Steering].clear()
    before, me.stage = me.stage, parse_policy(steer.policy)
    if end is not None and end.regroup:
        me.no_group = True
        return
    if before.exchange == "collective" or me.stage.exchange == "collective" or me.stage.racks_share_store:
        yield from me.meet("change", me.clock)
    if steer.save and steer.savers[0] == me.number:
        while (yield from me.receive(ServerState)).left:
            pass
    if me.stage.exchange == "store":
        yield from _enter_store(me, end=end)


def _stops(me: Worker) -> Script[bool]:
    """Return True if it stops here for others, as all have agreed; if not it has begun its next step."""
    if me.on_store:
        return False
    while me.asked > me.generation:
        if me.stop.generation != me.asked:
            me.stop = yield from me.receive(Stop, collective=True)
        elif me.clock + 1 > me.stop.clock:
            yield from me.meet("settle", me.clock)
            me.settled = me.clock
            return True
        else:
            break
    me.begun = me.clock + 1
    return False


def _regroup(me: Worker, *, agreed: bool) -> Script[None]:
    """Come to a new group."""
    late = me.late and me.base == 0
    while True:
        position = Position(
            base=me.base, settled=me.settled, trained=me.clock, clock=me.clock, plan=me.plan, samples=me.own
        )
        left = me.left if me.in_loop or me.plan < me.world.setting.num_plans else replace(me.left, num_fresh=0)
        me.world.stand(me.number, me.generation, (me.plan, left, me.samples))
        me.said.append(PositionReport(position=None if late else position, meeting="", agreed=agreed))
        told = yield from me.receive(Regroup)
        me.controls[Steering].clear()
        me.controls[ServerState].clear()
        try:
            me.generation, me.members = told.generation, told.members
            yield from me.meet("form")
            _take_over(me, told)
            late = False
            if told.steer is not None:
                me.stage = parse_policy(told.steer.policy)
                me.steer(told.steer)
                me.awaits_news = me.halted = False
                yield from me.meet("average")
            me.on_store = False
            if me.stage.exchange == "store":
                yield from _enter_store(me, end=None)
            agreed = yield from _stops(me)
            if not agreed:
                return
        except CutOffError:
            agreed = False


def _take_over(me: Worker, told: Regroup) -> None:
    plan, left, samples = me.world.handed_over(told.generation)
    common = common_plan(told.positions)
    if common != me.plan:
        me.in_loop = False
    me.plan, me.left = common, left if plan == common else me.figures.whole()
    me.in_loop = me.in_loop or 0 < len(me.left) < me.figures.budget_samples
    me.samples = samples
    me.clock = me.settled = me.reviewed_clock = common_clock(told.positions)
    me.base, me.no_group = told.generation, False
    me.begun = me.clock + 1
    if me.members[0] == me.number:
        own = sum(one.samples for one in told.positions if one is not None)
        me.said.append(Regrouped(samples=samples, own=own, dropped=0))
