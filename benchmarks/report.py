"""What a benchmark leaves behind: one JSON file, with the machine that it ran on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

__all__ = ["write_report"]


def write_report(path: Path, console: Console, machine: Mapping[str, Any], **facts: Any) -> None:
    """Write `facts` to `path` as JSON, with the machine's own and how busy it was, and say so."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    path.write_text(json.dumps({"machine": dict(machine), "load_average": load, **facts}, indent=1))
    console.print(f"written to {path}")
