"""Imported by a fork server: the processes that it forks fork their jobs' servers, instead of importing all anew."""

from plesio.runtime import job_servers
from plesio.testing.forked_server import ForkedServer

job_servers.start_server = ForkedServer  # type: ignore[assignment, attr-defined]
