"""Files: those from outside, which may hold anything, and those that are written here."""
