"""Where a file's bytes are: asked of the HDF5 library once, then kept as columns."""
