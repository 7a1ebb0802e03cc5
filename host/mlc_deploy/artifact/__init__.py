"""Saved models: one file that boards run without a laptop, and this package without the compiler.

format    the bytes of the file
save      writes compiled programs to a file
saved     reads a file as a model for `deploy` and `board.load`
folder    the file, with the program that runs it on a board
export    a model as part of a C program; c_table: its call table, c_data: the table as data
c_model   a whole model as C
"""

from .folder import save_folder
from .save import save
from .saved import SavedModel, load_model

__all__ = ["SavedModel", "load_model", "save", "save_folder"]
