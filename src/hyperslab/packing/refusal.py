"""Why a case is not packed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hyperslab.errors import HyperslabError
from hyperslab.rewriting.encode import Cancelled

__all__ = ["NotAnImage", "Refused", "as_refusal"]


class Refused(Exception):
    """An image, and so its case, cannot be packed; the message is the reason, in a sentence."""


class NotAnImage(Refused):
    """A DICOM series that is something else: structures, a plan, a report."""


@contextmanager
def as_refusal(what: str) -> Iterator[None]:
    """Turn whatever a library makes of a file that it cannot read into a refusal.

    Our own errors (a package that is missing), want of memory and a wish to stop are let through.
    """
    try:
        yield
    except (Cancelled, HyperslabError, MemoryError, Refused):
        raise
    except Exception as error:
        raise Refused(f"{what} cannot be read: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    """Return the last line of a message: of what ITK says, the one that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[-1].startswith("Reason: "):  # of an earlier call of the system, often
        return "it is damaged, cut off, or of another format than its name says"
    return lines[-1] if lines else type(error).__name__
