"""The checksum of HDF5's own metadata: Bob Jenkins' lookup3 hash.

HDF5 file format specification 3.0, section VII.B.
"""

from __future__ import annotations

__all__ = ["metadata_checksum"]


def metadata_checksum(data: bytes) -> int:
    """Return the checksum that HDF5 stores behind a metadata block, unsigned 32-bit."""
    import imagecodecs

    return int(imagecodecs.h5checksum_metadata(data)) & 0xFFFFFFFF
