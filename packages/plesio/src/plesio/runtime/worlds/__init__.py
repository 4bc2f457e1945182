"""Where a session runs: alone in one process, or as a worker of a job."""
