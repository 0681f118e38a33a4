"""What the helping process says: JSON facts with columns of numbers behind them, in frames.

A frame is two sizes (8 bytes each, little-endian), the JSON, and the columns one after the other.
Nothing in it is executed, and little is taken on trust: the process that wrote it reads files that
may have been made to take it over.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["Message", "MessageError", "read_message", "send_message"]

Message = tuple[dict[str, Any], list[NDArray[Any]]]

_SIZES = struct.Struct("<QQ")
_DTYPES = {"<i8", "<u4"}
_MOST_JSON = 1 << 30


class MessageError(Exception):
    """The other side has broken off, or says what makes no sense."""


def send_message(fd: int, facts: dict[str, Any], columns: list[NDArray[Any]]) -> None:
    """Write one frame to a descriptor: `facts` without a key "columns", and arrays of int or uint.

    Once this has returned, the frame arrives, whatever becomes of this process.
    """
    plain = [np.ascontiguousarray(c, "<u4" if c.dtype == np.uint32 else "<i8") for c in columns]
    told = {**facts, "columns": [[c.dtype.str, c.size] for c in plain]}
    text = json.dumps(told, separators=(",", ":")).encode("ascii")
    head = _SIZES.pack(len(text), sum(c.nbytes for c in plain)) + text
    for view in [memoryview(head), *(c.data.cast("B") for c in plain if c.size)]:
        while view.nbytes:
            view = view[os.write(fd, view) :]


def read_message(stream: BinaryIO) -> Message:
    """Read one frame.

    Returns
    -------
    dict
        The facts.
    list of numpy.ndarray
        The columns, int64 or uint32, owned by the caller.

    Raises
    ------
    MessageError
        The stream ends, or is no sequence of frames.
    """
    n_json, n_columns = _SIZES.unpack(_read(stream, _SIZES.size))
    if n_json > _MOST_JSON:
        raise MessageError(f"a message of {n_json} bytes")
    text = _read(stream, n_json)
    try:
        facts = json.loads(text)
        shapes = [(str(dtype), int(size)) for dtype, size in facts.pop("columns")]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MessageError(f"a message that makes no sense: {error}") from error
    if any(dtype not in _DTYPES or size < 0 for dtype, size in shapes):
        raise MessageError(f"columns {shapes}")
    nbytes = [np.dtype(dtype).itemsize * size for dtype, size in shapes]
    if sum(nbytes) != n_columns:
        raise MessageError(f"columns of {sum(nbytes)} bytes in {n_columns}")
    columns = [
        np.frombuffer(_read(stream, n), dtype).astype(np.dtype(dtype).newbyteorder("="))
        for n, (dtype, _) in zip(nbytes, shapes, strict=True)
    ]
    return facts, columns


def _read(stream: BinaryIO, nbytes: int) -> bytes:
    try:
        data = stream.read(nbytes)
    except (MemoryError, OverflowError) as error:
        raise MessageError(f"a message of {nbytes} bytes") from error
    if len(data) != nbytes:
        raise MessageError("the stream ends")
    return data
