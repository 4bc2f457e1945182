"""What can be set of the adaptive policy: its components and their parameters."""
