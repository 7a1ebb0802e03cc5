"""Tuning: a board finds the fastest schedule of each kernel, and a database keeps what it found.

records    what passes between searching and measuring
space      schedules that a task may have; rules/, template, postproc: how they come about
search     which of them to try next; mutate, features, cost_model: by what it goes
builder    candidates to objects, in processes that may fail
boards     several boards as one executor; runner: what a candidate costs on one of them
database   what was measured, in a file that survives anything
extract    a model's kernels as tasks; scheduler: whose turn it is; tune: the whole
"""
