"""The command line: ``hyperslab info | bench | demo``.

A command is one module of this package with a function `command`; `hyperslab.cli.app` lists them.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line on `sys.argv`; ends with the exit status 0, 1 or 2."""
    from hyperslab.cli.app import app
    from hyperslab.cli.terminal import allow_any_text

    allow_any_text()
    app(prog_name="hyperslab")
