"""The system side: settings, their predicted step times, and the least slack that hides waiting and communication."""
