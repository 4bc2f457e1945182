import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.core.errors import DataError, TaskError
from plesio.tasks.stdlib_lm import ByteTransformer, read_corpus, stdlib_lm

CORPUS_BYTES = 200_000


def test_no_file_is_in_both_parts_and_each_part_is_its_files() -> None:
    corpus = read_corpus(CORPUS_BYTES)
    assert not set(corpus.train_files) & set(corpus.held_out_files)
    for part, files in ((corpus.train, corpus.train_files), (corpus.held_out, corpus.held_out_files)):
        assert bytes(part.tolist()) == b"".join(path.read_bytes() for path in files)


def test_the_size_is_reached_and_then_reading_stops() -> None:
    corpus = read_corpus(CORPUS_BYTES)
    files = (*corpus.train_files, *corpus.held_out_files)
    total = len(corpus.train) + len(corpus.held_out)
    assert total >= CORPUS_BYTES
    assert total - max(path.stat().st_size for path in files) < CORPUS_BYTES


def test_a_larger_corpus_contains_the_smaller_one_in_the_same_parts() -> None:
    small, large = read_corpus(CORPUS_BYTES), read_corpus(2 * CORPUS_BYTES)
    assert large.train_files[: len(small.train_files)] == small.train_files
    assert large.held_out_files[: len(small.held_out_files)] == small.held_out_files


def test_copies_tests_and_installed_packages_are_left_out(tmp_path: Path) -> None:
    for folder in ("site-packages", "test", "sub"):
        (tmp_path / folder).mkdir()
    for number in range(30):
        (tmp_path / "sub" / f"m{number}.py").write_text(f"x = {number}\n")
        (tmp_path / f"copy{number}.py").write_text("x = 0\n")
    (tmp_path / "site-packages" / "installed.py").write_text("installed = 1\n")
    (tmp_path / "test" / "test_it.py").write_text("tested = 1\n")
    corpus = read_corpus(10**6, folder=tmp_path)
    texts = [path.read_text() for path in (*corpus.train_files, *corpus.held_out_files)]
    assert sorted(texts) == sorted(f"x = {number}\n" for number in range(30))
    assert len(corpus.held_out_files) == 3


def test_a_library_without_source_files_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 Python source files"):
        read_corpus(10**6, folder=tmp_path)


def test_windows_follow_each_other_with_one_byte_in_common() -> None:
    dataset = stdlib_lm(context=32, corpus_bytes=CORPUS_BYTES).train_set()
    for (first,), (second,) in itertools.pairwise(dataset[index] for index in range(5)):
        assert len(first) == 33
        assert first[-1] == second[0]


def test_the_model_sees_no_later_byte() -> None:
    torch.manual_seed(0)
    model = ByteTransformer(context=16, width=16, depth=2, num_heads=2).eval()
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :10], after[0, :10], atol=1e-6)
    assert not torch.allclose(before[0, 10:], after[0, 10:], atol=1e-3)


def test_a_model_that_knows_nothing_has_the_perplexity_of_guessing() -> None:
    task = stdlib_lm(context=32, corpus_bytes=CORPUS_BYTES, width=16, depth=1, num_heads=2)
    model, _ = task.build(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert task.metric(model) == pytest.approx(256, rel=1e-4)


def test_the_rate_is_warmed_up_and_ends_at_a_tenth() -> None:
    task = stdlib_lm(corpus_bytes=CORPUS_BYTES, learning_rate=1e-2)
    _, optimizer = task.build(0)
    schedule = task.schedule(optimizer, 100)
    assert schedule is not None
    rates = []
    for _ in range(120):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) == pytest.approx(1e-2)
    assert rates[0] < rates[2] < rates[4]
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[5:]))
    assert rates[100] == pytest.approx(1e-3)
    assert rates[119] == pytest.approx(1e-3)  # more steps than planned: it stays there


def test_only_vectors_are_spared_weight_decay() -> None:
    model, optimizer = stdlib_lm(corpus_bytes=CORPUS_BYTES).build(0)
    decayed, spared = optimizer.param_groups
    assert all(parameter.ndim >= 2 for parameter in decayed["params"])
    assert spared["weight_decay"] == 0
    assert len(decayed["params"]) + len(spared["params"]) == sum(1 for _ in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 30, "num_heads": 4}, "width = 30 is no multiple of num_heads = 4"),
        ({"corpus_bytes": 10}, "corpus_bytes = 10"),
        ({"context": 0}, "context = 0"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        stdlib_lm(**options)


def test_a_context_longer_than_the_corpus_is_refused_when_it_is_read() -> None:
    with pytest.raises(TaskError, match="write a smaller context or a larger corpus_bytes"):
        stdlib_lm(context=10**6, corpus_bytes=CORPUS_BYTES).train_set()


@pytest.mark.slow
def test_a_minute_of_training_is_far_better_than_byte_frequencies() -> None:
    task = stdlib_lm(context=64, corpus_bytes=1_000_000, width=64)
    model, optimizer = task.build(0)
    dataset: Any = task.train_set()
    schedule = task.schedule(optimizer, 400)
    order = torch.Generator().manual_seed(0)
    for _ in range(400):
        indices = torch.randint(len(dataset), (16,), generator=order)
        task.loss(model, dataset[indices]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        assert schedule is not None
        schedule.step()
    counts = torch.bincount(read_corpus(1_000_000).held_out.long(), minlength=256).double()
    shares = counts[counts > 0] / counts.sum()
    assert task.metric(model) < 0.7 * math.exp(-(shares * shares.log()).sum().item())
