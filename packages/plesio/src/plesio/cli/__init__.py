"""The `plesio` command. Importing it imports neither torch nor rich."""
