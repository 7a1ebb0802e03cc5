"""A farm: boards and builders of many machines, shared by many users. Dask distributed runs the
work: each board is a worker with the resource `board-<kind>`, and so are the builders of a machine.
"""
