"""Reading files from outside, which may hold anything, and writing our own."""
