"""What a viewer needs of an image: a lazy array per channel and level, and read-ahead."""

from __future__ import annotations

from hyperslab.viewing.ahead import read_ahead_stats, stop_read_ahead
from hyperslab.viewing.budget import ensure_cache
from hyperslab.viewing.channel import ChannelView, channel_views
from hyperslab.viewing.stats import ReadAheadStats
from hyperslab.viewing.volume import volume_level

__all__ = [
    "ChannelView",
    "ReadAheadStats",
    "channel_views",
    "ensure_cache",
    "read_ahead_stats",
    "stop_read_ahead",
    "volume_level",
]
