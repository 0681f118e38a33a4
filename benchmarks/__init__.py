"""What hyperslab must reach, measured: `make bench`."""
