"""The system side: settings, and the seconds of a step under each."""
