"""Boards: their names, and the programs that are sent to them."""
