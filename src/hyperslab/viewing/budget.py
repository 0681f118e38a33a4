"""How many bytes of decoded chunks to keep, so that scrolling decodes nothing twice."""

from __future__ import annotations

import os

from hyperslab.engine.limits import default_cache_nbytes, limits, memory_at_hand

__all__ = ["ensure_cache"]

_VARIABLE = "HYPERSLAB_CACHE_MB"
_raised_to = -1


def ensure_cache(nbytes: int) -> int:
    """Raise the budget of the decoded-chunk cache to `nbytes`, as far as that is reasonable.

    Whoever scrolls through a slab that does not fit into the cache has every plane decode the whole
    slab: what is needed next is always what was dropped last. `ChannelView` calls this by itself.

    Parameters
    ----------
    nbytes
        What the slabs of all channels that are shown take, decoded, and those to come.

    Returns
    -------
    int
        The budget now, bytes. Less than `nbytes` where that is more than a quarter of the memory
        that is free, or where the budget is the user's own, which is left as it is: set by the
        environment variable HYPERSLAB_CACHE_MB, or by `hyperslab.configure`.

    Notes
    -----
    The budget is never lowered. Memory is taken only as chunks are decoded.
    """
    global _raised_to
    if nbytes > limits.cache_nbytes and not _is_the_users():
        wanted = min(nbytes, memory_at_hand() // 4)
        if wanted > limits.cache_nbytes:
            limits.cache_nbytes = _raised_to = wanted
    return limits.cache_nbytes


def _is_the_users() -> bool:
    """Tell whether the budget is neither the default nor what it was raised to here."""
    if os.environ.get(_VARIABLE, ""):
        return True
    return limits.cache_nbytes not in (default_cache_nbytes(), _raised_to)
