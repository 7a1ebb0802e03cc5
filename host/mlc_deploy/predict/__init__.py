"""Milliseconds without a board: from what an emulator counts, and what is known of cores."""
