"""The worlds of a session: alone in one process, or a worker of a job."""
