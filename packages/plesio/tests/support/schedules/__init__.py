"""Random schedules against the pure machines and the coordinator: one driver for tests and for the long campaign."""
