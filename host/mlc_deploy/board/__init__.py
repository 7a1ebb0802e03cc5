"""Boards: their names, how to connect, and the runtimes that are sent to them."""
