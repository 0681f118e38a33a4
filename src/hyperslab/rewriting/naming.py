"""How a file gets its name: when it is complete, and not before."""

from __future__ import annotations

import os
from pathlib import Path

from hyperslab.errors import OutputError

__all__ = ["give_name", "refuse_existing", "sync"]


def refuse_existing(final: Path) -> None:
    """Raise unless a new file can be made under that name.

    Raises
    ------
    OutputError
        It exists, or its folder does not.
    """
    if final.exists():
        raise OutputError(f"{final}: exists already. Delete it, or give another name.")
    if not final.parent.is_dir():
        raise OutputError(f"{final}: there is no folder {final.parent}.")


def sync(path: Path) -> None:
    """Have a file or a folder on the disk, also if the power is cut."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return  # folders, on Windows
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_name(made: Path, final: Path) -> None:
    """Give a complete file or folder its name, once it is on the disk.

    Raises
    ------
    OutputError
        Meanwhile something else has that name.
    """
    sync(made)
    if final.exists():
        raise OutputError(
            f"{final}: exists meanwhile, and nothing is replaced. Move it away and go on with "
            "--resume (resume=True)."
        )
    os.replace(made, final)
    sync(final.parent)
