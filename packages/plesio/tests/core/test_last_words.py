"""An interrupted worker ends quickly."""

import gc
import os
import sys

import pytest

from plesio.core.last_words import SUPERVISOR_VARIABLE, name_of_pipe, tell_errors


def test_an_interrupted_worker_does_not_look_through_all_objects_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    monkeypatch.setenv(SUPERVISOR_VARIABLE, name_of_pipe(write))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        tell_errors()
        sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        os.close(read)
        os.close(write)
