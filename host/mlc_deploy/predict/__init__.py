"""Milliseconds without a board: from an emulator's counts, and from figures of cores."""
