"""Bytes and threads: plan a read, fetch, decode, place."""
