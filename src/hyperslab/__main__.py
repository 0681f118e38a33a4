"""``python -m hyperslab`` is the command line."""

from __future__ import annotations

from hyperslab.cli import main

if __name__ == "__main__":
    main()
