"""Where hyperslab keeps what it has found out, so that it need not find it out again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_folder"]


def cache_folder(purpose: str) -> Path:
    """Return the folder for files of one `purpose` ("index", "facts", ...), made if need be.

    It is below the environment variable HYPERSLAB_CACHE_DIR, else below the user's cache folder
    (``~/.cache/hyperslab`` on Linux). All of it may be deleted at any time.
    """
    named = os.environ.get("HYPERSLAB_CACHE_DIR")
    root = Path(named) if named else Path(platformdirs.user_cache_dir("hyperslab", appauthor=False))
    folder = root / purpose
    folder.mkdir(parents=True, exist_ok=True)
    return folder
