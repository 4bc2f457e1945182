"""Running a policy on real workers: session, job, server, and the exchanges between them."""
