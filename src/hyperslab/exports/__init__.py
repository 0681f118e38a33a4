"""What an image is handed on as: arrays of dask and xarray, pictures, words; never more than asked.

Everything here acts on levels and on what their layout says. dask and xarray are imported where
they are used.
"""
