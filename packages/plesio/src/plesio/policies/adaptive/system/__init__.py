"""The system side: the least slack that hides waiting and communicating."""
