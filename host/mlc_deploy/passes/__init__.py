"""Shared by passes over graphs and loops: the context they run in, and instruments."""
