"""Commands of planning; Plesio finds them by the entry points `plesio.commands` and `plesio.validations`."""
