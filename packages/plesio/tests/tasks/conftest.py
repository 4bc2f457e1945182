from collections.abc import Iterator

import pytest
import torch
import torch._dynamo  # noqa: F401  # whole before a test: what a task's module imports is let go where it fails


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are small: threads would only wait for each other
    yield
    torch.set_num_threads(before)
