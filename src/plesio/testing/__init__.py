"""What Plesio's own tests use and yours may: real workers in real processes, started in milliseconds."""

from plesio.testing.local_job import Ending, LocalJob

__all__ = ["Ending", "LocalJob"]
