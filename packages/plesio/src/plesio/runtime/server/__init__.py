"""A server of a job: a driver of the coordinator, and the shard of the parameters that it holds."""
