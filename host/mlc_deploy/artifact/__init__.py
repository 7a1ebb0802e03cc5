"""Saved models: one file that boards run without a laptop, and this package without the compiler.

format    the bytes of the file
save      compiled programs to a file
saved     a file to what `deploy` and `board.load` take
section   what an object says of itself
folder    the file, and the program that runs it on a board
export    a model as part of a C program; c_table, its call table as data
"""

from .folder import save_folder
from .save import save
from .saved import SavedModel, load_model

__all__ = ["SavedModel", "load_model", "save", "save_folder"]
