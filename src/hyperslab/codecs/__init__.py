"""How filters are undone: one module a filter, and the pipeline that runs them in order."""
