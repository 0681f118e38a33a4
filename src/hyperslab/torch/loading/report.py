"""`LoaderReport`: how fast an epoch was loaded, and who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoaderReport"]


@dataclass(slots=True, kw_only=True)
class LoaderReport:
    """What an epoch's loading took, so far.

    Attributes
    ----------
    samples, batches
        Handed out.
    seconds
        From the first batch asked for to the last one handed out.
    waiting_s
        Of these, how long the caller waited for the loader. Near 0: the model is the bottleneck;
        near `seconds`: the loader is.
    """

    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    waiting_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples handed out per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        share = self.waiting_s / self.seconds if self.seconds else 0.0
        which = "the loader" if share > 0.5 else "the model"
        return (
            f"{self.samples} samples, {self.samples_per_s:.0f} per second, {share:.0%} of the time "
            f"waiting for data: {which} is the bottleneck"
        )
