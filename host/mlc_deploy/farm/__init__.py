"""A farm: boards and builders on many machines, shared by many users. Dask distributed runs the
work. Each board is a worker with the resource `board-<kind>`; the builders of a machine are one
worker with the resource `builder`."""
