"""Tools of Plesio's own tests that yours may use.

==========  ========================================================================================================
name        what it is for
==========  ========================================================================================================
FakeClock   time that a test sets, wherever Plesio takes a clock
play        a policy's machine through a schedule with faults, its laws checked, without training
Fault       a worker that is lost or joins, for `play` and for `plesio.runtime.worlds.virtual.simulate`
LocalJob    real workers in real processes, started in milliseconds
==========  ========================================================================================================
"""

from plesio.cost.faults import Fault
from plesio.testing.fake_clock import FakeClock
from plesio.testing.local_job import Ending, LocalJob
from plesio.testing.play import Played, play

__all__ = ["Ending", "FakeClock", "Fault", "LocalJob", "Played", "play"]
