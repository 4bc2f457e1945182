import dataclasses
import math
from typing import get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given

import plesio.policies
from plesio.core.errors import PolicySpecError
from plesio.policies import (
    ASP,
    BSP,
    FSDP,
    POLICY_HELP,
    SSP,
    UNWEIGHTED,
    Cap,
    Delayed,
    DiLoCo,
    Exponential,
    Interruptible,
    Inverse,
    LocalSGD,
    Policy,
    PostLocalSGD,
    Product,
    TorchHook,
    describe,
    parse_policy,
)
from plesio.policies.asynchronous import RateKind
from plesio.policies.compression import NO_COMPRESSION, HalfPrecision, PowerSgd, Qsgd, TopK
from plesio.policies.policy import ExchangeKind, MergeKind, MomentsKind, UpdateKind

ANY_EXCHANGE = st.sampled_from(get_args(ExchangeKind))
ANY_UPDATE = st.sampled_from(get_args(UpdateKind))
ANY_RATE = st.sampled_from(get_args(RateKind))
WEIGHTINGS = st.sampled_from([UNWEIGHTED, Inverse(), Exponential(rate=0.1), Product((Inverse(), Cap(limit=8)))])
COMPRESSIONS = st.sampled_from(
    [
        NO_COMPRESSION,
        HalfPrecision(form="fp16"),
        TopK(density=0.01, feedback=False),
        Qsgd(bits=8),
        PowerSgd(rank=2, guard=20),
    ]
)

HOOKS = st.one_of(
    st.builds(TorchHook, form=st.sampled_from(["fp16", "bf16"])),
    st.builds(TorchHook, form=st.just("powersgd"), rank=st.integers(1, 8), start=st.integers(2, 30)),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    name = draw(
        st.sampled_from(["bsp", "bsp,hook", "fsdp", "delayed", "ssp", "asp", "local_sgd", "diloco", "post_local_sgd"])
    )
    period = draw(st.integers(1, 30))
    exchange = draw(ANY_EXCHANGE)
    compression = draw(COMPRESSIONS) if exchange == "collective" else NO_COMPRESSION
    if name == "bsp":
        backup = draw(st.integers(0, 5)) if exchange == "store" else 0
        return BSP(exchange=exchange, compression=compression, backup=backup)
    if name == "bsp,hook":
        return BSP(hook=draw(HOOKS))
    if name == "fsdp":
        return FSDP(blocks=draw(st.sampled_from([(), ("Block",), ("mlp", "Attention")])))
    if name == "post_local_sgd":
        return PostLocalSGD(period=period + 1, warmup=draw(st.integers(0, 30)))
    if name == "delayed":
        return Delayed(delay=draw(st.integers(0, 30)), compression=compression)
    if name == "local_sgd":
        delay = draw(st.integers(0, period))
        if exchange == "store":
            return LocalSGD(period=period, delay=delay, exchange=exchange)
        inner_rate = draw(st.floats(0, 1, exclude_min=True))
        momentum = draw(st.floats(0, 1, exclude_max=True))
        return LocalSGD(
            period=period,
            delay=delay,
            inner_rate=inner_rate,
            momentum=momentum,
            moments=draw(st.sampled_from(get_args(MomentsKind))),
            compression=compression,
        )
    if name == "diloco":
        fragments = draw(st.integers(1, 4))
        delay = draw(st.integers(0, period))
        merge = "mean" if compression.keeps_residual else draw(st.sampled_from(get_args(MergeKind)))
        return DiLoCo(
            local_steps=period * fragments,
            outer=draw(st.sampled_from(["nesterov", "sgd"])),
            outer_lr=draw(st.floats(0, 2, exclude_min=True)),
            outer_momentum=draw(st.floats(0, 1, exclude_max=True)),
            fragments=fragments,
            delay=delay,
            alpha=draw(st.floats(0, 1, exclude_max=True)) if delay else 0.5,
            merge=merge,
            moments=draw(st.sampled_from(get_args(MomentsKind))) if fragments == 1 else "own",
            compression=compression,
        )
    if name == "asp":
        return ASP(period=period, update=draw(ANY_UPDATE), weighting=draw(WEIGHTINGS), rate=draw(ANY_RATE))
    bound = draw(st.one_of(st.integers(period - 1, 60), st.just(math.inf)))
    rate = draw(ANY_RATE) if bound else "divided"
    return SSP(bound=bound, period=period, update=draw(ANY_UPDATE), weighting=draw(WEIGHTINGS), rate=rate)


@given(policies())
def test_spec_reads_back_as_the_same_policy(policy: Policy):
    assert parse_policy(policy.spec) == policy
    assert hash(parse_policy(policy.spec)) == hash(policy)


@given(policies())
def test_spec_is_the_shortest_text(policy: Policy):
    """Without any one of its options the text says another policy."""
    head, *options = policy.spec.split(",")
    for index in range(len(options)):
        shorter = ",".join([head, *options[:index], *options[index + 1 :]])
        try:
            assert parse_policy(shorter) != policy
        except PolicySpecError:
            continue


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("bsp", BSP()),
        ("bsp,exchange=store", BSP(exchange="store")),
        ("ssp:4", SSP(bound=4, period=1)),
        ("ssp:inf", SSP(bound=math.inf)),
        ("ssp:4,period=2,weight=inverse", SSP(bound=4, period=2, weighting=Inverse())),
        ("ssp:4,update=delta", SSP(bound=4, update="delta")),
        (" SSP : 4 , Update = delta ", SSP(bound=4, update="delta")),
        ("asp", ASP()),
        ("modified_async", ASP()),
        ("Modified_Async, period=2", ASP(period=2)),
        ("asp,weight=exp:0.1+cap:16", ASP(weighting=Product((Exponential(rate=0.1), Cap(limit=16))))),
        ("local_sgd:8", LocalSGD(period=8)),
        ("local_sgd:8,delay=4", LocalSGD(period=8, delay=4)),
        ("local_sgd:8,exchange=store,delay=1", LocalSGD(period=8, delay=1, exchange="store")),
        ("local_sgd:8,inner_rate=0.25,momentum=0.5", LocalSGD(period=8, inner_rate=0.25, momentum=0.5)),
        ("local_sgd:4, Moments = mean", LocalSGD(period=4, moments="mean")),
        ("local_sgd:8,compress=topk:0.01", LocalSGD(period=8, compression=TopK(density=0.01))),
        ("diloco:30", DiLoCo(local_steps=30)),
        (
            "diloco:30,outer=sgd,outer_lr=1,outer_momentum=0.5,merge=rda",
            DiLoCo(local_steps=30, outer="sgd", outer_lr=1, outer_momentum=0.5, merge="rda"),
        ),
        (
            "diloco:30,fragments=3,delay=5,alpha=0,compress=qsgd:4+feedback",
            DiLoCo(local_steps=30, fragments=3, delay=5, alpha=0, compression=Qsgd(bits=4, feedback=True)),
        ),
        ("bsp, compress = QSGD:8 + feedback", BSP(compression=Qsgd(bits=8, feedback=True))),
        ("bsp,compress=none", BSP()),
        ("bsp,hook=bf16", BSP(hook=TorchHook(form="bf16"))),
        ("bsp, Hook = PowerSGD:2 + start:20", BSP(hook=TorchHook(form="powersgd", rank=2, start=20))),
        ("fsdp", FSDP()),
        ("fsdp,blocks=EncoderLayer+MLP", FSDP(blocks=("MLP", "EncoderLayer"))),
        ("post_local_sgd:4,warmup=10", PostLocalSGD(period=4, warmup=10)),
        ("delayed:2", Delayed(delay=2)),
        ("delayed:1,compress=fp16", Delayed(compression=HalfPrecision(form="fp16"))),
    ],
)
def test_text_by_hand(text: str, policy: Policy):
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bps", 'unknown policy "bps"; did you mean "bsp"?'),
        ("", f"known: {', '.join(sorted(POLICY_HELP))}"),
        ("ssp", 'needs its bound, as in "ssp:4"'),
        ("ssp:-1", "bound is -1; write a whole number of steps, 0 or more"),
        ("ssp:9999999999999999", "write at most 1e+15"),
        ("local_sgd:9999999999999999", "write at most 1e+15"),
        ("ssp:four", 'bound is "four"; write a whole number'),
        ("ssp:4,period=9", "write a period of 5 or less, or a bound of 8 or more"),
        ("ssp:4,wieght=inverse", 'unknown key "wieght"; did you mean "weight"?'),
        ("ssp:4,weight=invers", 'did you mean "inverse"?'),
        ("ssp:4,update=weights", "known: delta, gradient"),
        ("asp:3", 'asp takes no ":3"'),
        ("asp,rate=full", 'rate is "full"; known: divided, undivided'),
        ("ssp:0,rate=undivided", "with a bound of 0 a round is a mean"),
        ("asp,period=0", "period is 0; write a whole number of 1 or more"),
        ("asp,period=2,period=3", '"period" is given twice'),
        ("asp,period", 'write "period=..."'),
        ("asp,", 'unknown key ""'),
        ("bsp,exchange=colective", 'did you mean "collective"?'),
        ("bsp,period=2", 'unknown key "period"'),
        ("bsp,compress=topk", "topk needs the share of the numbers that is sent"),
        ("bsp,compress=fp61", 'did you mean "fp16"?'),
        ("bsp,exchange=store,compress=fp16", "leave compress=fp16 out, or use exchange=collective"),
        ("bsp,hook=fp61", 'did you mean "fp16"?'),
        ("bsp,hook=fp16:2", "write hook=fp16"),
        ("bsp,hook=powersgd:two", '"two" is no whole number'),
        ("bsp,hook=powersgd:2+begin:3", 'write "+start:STEPS"'),
        ("bsp,hook=powersgd+start:1", "start is 1; write a whole number of 2 or more"),
        ("bsp,hook=fp16,compress=fp16", "leave compress and exchange out"),
        ("bsp,hook=fp16,exchange=store", "leave compress and exchange out"),
        ("fsdp:4", 'fsdp takes no ":4"'),
        ("fsdp,blocks=a b", "is no name of a class"),
        ("post_local_sgd:1", "period is 1; write a whole number of 2 or more"),
        ("local_sgd:8,exchange=store,compress=qsgd:8", "the store takes updates in full"),
        ("asp,compress=randk:0.1", "write qsgd, topk, fp16 or bf16, or use a policy on the collective"),
        ("ssp:0,compress=fp16", "write bsp,compress=fp16"),
        ("delayed", 'needs its delay, as in "delayed:1"'),
        ("delayed:-1", "delay is -1; write a whole number of 0 or more"),
        ("local_sgd", "needs its period"),
        ("local_sgd:0", "period is 0; write a whole number of 1 or more"),
        ("local_sgd:8,delay=9", "write a delay of 8 or less"),
        ("local_sgd:8,delay=-1", "delay is -1; write a whole number of 0 or more"),
        ("diloco", 'needs its local_steps, as in "diloco:30,fragments=3,delay=5"'),
        ("diloco:0", "local_steps is 0; write a whole number of 1 or more"),
        ("diloco:30,fragments=4", "write a number of fragments that divides 30"),
        ("diloco:30,fragments=0", "fragments is 0; write a whole number of 1 or more"),
        ("diloco:30,fragments=3,delay=11", "write a delay of 10 or less"),
        ("diloco:30,delay=5,alpha=1", "alpha is 1; write a number of 0 or more, less than 1"),
        ("diloco:30,alpha=0.2", "leave it out, or write a delay"),
        ("diloco:30,outer=lion", "known: "),
        ("diloco:30,fragments=3,moments=mean", "leave fragments or moments out"),
        ("diloco:30,exchange=store,moments=mean", "on the store workers do not meet; leave moments out"),
        ("diloco:30,outer=adam", "needs one of its own; write about a tenth"),
        ("diloco:30,outer_lr=0", "outer_lr is 0; write a number of more than 0"),
        ("diloco:30,outer_momentum=1", "outer_momentum is 1; write a number of 0 or more, less than 1"),
        ("diloco:30,compress=qsgd:3", "bits is 3; write 2, 4 or 8"),
        ("diloco:30,merge=rda,compress=topk:0.1", "write compress=topk:0.1+no_feedback"),
    ],
)
def test_bad_text_is_refused_with_what_to_write(text: str, message: str):
    with pytest.raises(PolicySpecError) as error:
        parse_policy(text)
    assert message in str(error.value)
    assert f'"{text.partition(":")[0].partition(",")[0]}' in str(error.value)
    assert "\n" not in str(error.value)


@given(policies())
def test_every_policy_has_one_sentence(policy: Policy):
    sentence = describe(policy)
    assert sentence.endswith(".")
    assert sentence.count(".") == 1 or policy.weighting != UNWEIGHTED or "sent as" in sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ssp:0,update=delta", "Every step waits for all workers and applies the mean of their deltas."),
        (
            "ssp:1,weight=inverse",
            "No worker begins a step more than 1 step ahead of the slowest; each sends its gradient every step and it "
            "is applied as it arrives, weighted by its staleness (inverse).",
        ),
        (
            "asp,rate=undivided",
            "No worker ever waits for another; each sends its gradient every step and it is applied as it arrives, at "
            "the whole learning rate.",
        ),
        (
            "bsp,backup=2",
            "Every step waits for all workers but the 2 slowest and applies the mean of their gradients; what comes "
            "later is dropped, and its samples are dealt out again.",
        ),
        ("delayed:1", "Every step applies the mean of the workers' gradients of 1 step before."),
        (
            "bsp,compress=topk:0.1",
            "Every step waits for all workers and applies the mean of their gradients, sent as topk:0.1.",
        ),
        (
            "fsdp",
            "Every step waits for all workers and applies the mean of their gradients, of which each holds and steps "
            "its own part.",
        ),
        (
            "bsp,hook=powersgd:2",
            "Every step waits for all workers and applies the mean of their gradients (torch's powersgd:2 hook).",
        ),
        (
            "post_local_sgd:8,warmup=100",
            "Gradients are averaged for 100 steps; then workers train alone and average their parameters every 8 steps "
            "(torch's own).",
        ),
        (
            "diloco:30,fragments=3,delay=5",
            "Workers train alone and exchange every 10 steps, one of 3 fragments of the parameters, while they train "
            "on for 5 steps; the mean of what they came to is the gradient of an outer optimizer.",
        ),
        ("local_sgd:8", "Workers train alone for 8 steps, then wait and average their parameters."),
        ("local_sgd:8,delay=4", "Workers average their parameters every 8 steps, while they train on for 4 steps."),
    ],
)
def test_sentences(text: str, sentence: str):
    assert describe(parse_policy(text)) == sentence


def test_help_names_each_policy_with_an_example_that_reads():
    public = [getattr(plesio.policies, name) for name in plesio.policies.__all__]
    names = {one.name for one in public if isinstance(one, type) and issubclass(one, Policy) and one is not Policy}
    assert set(POLICY_HELP) == names - {Interruptible.name}, "jobs alone write that one"
    for name, line in POLICY_HELP.items():
        assert parse_policy(line.rpartition("as in ")[2]).name == name


def test_a_grid_is_no_policy_and_says_so():
    with pytest.raises(PolicySpecError, match="is a grid and no policy"):
        parse_policy("grid:2x2")


@given(policies())
def test_policies_are_frozen_values(policy: Policy):
    assert dataclasses.is_dataclass(policy)
    assert not hasattr(policy, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, dataclasses.fields(policy)[0].name, 1)
