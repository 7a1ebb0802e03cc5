"""The layers of all formats in our operators: a subject per file.

A converter reads its format's attributes and calls these functions. Where formats differ in one
point, a parameter says so.
"""
