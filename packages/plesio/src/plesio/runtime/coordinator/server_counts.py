"""The traffic of a run's servers, as a result has it."""

from collections import Counter

__all__ = ["ServerCounts"]


class ServerCounts:
    """The counts of one run's servers, with those of the part before it was resumed."""

    def __init__(self) -> None:
        self.bytes_sent: Counter[str] = Counter()
        """Bytes by class of link."""
        self.refused: Counter[str] = Counter()
        """Refused peers, by reason."""
        self.cross_rack_bytes = 0
        self._sent_before: Counter[str] = Counter()
        self._crossed_before = 0

    def go_on_from(self, *, bytes_sent: dict[str, int], cross_rack_bytes: int) -> None:
        """Add what the servers had sent when the run was interrupted that is resumed now."""
        self._sent_before, self._crossed_before = Counter(bytes_sent), cross_rack_bytes
        self.bytes_sent, self.cross_rack_bytes = self._sent_before + self.bytes_sent, cross_rack_bytes

    def enter(self, *, sent: Counter[str], refused: Counter[str], cross_rack_bytes: int) -> None:
        """Set the counts since the run began, or was resumed."""
        self.bytes_sent, self.refused = self._sent_before + sent, refused
        self.cross_rack_bytes = self._crossed_before + cross_rack_bytes
