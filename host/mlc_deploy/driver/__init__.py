"""From a model to an object, and from an object to what a board made of it: each step calls the
rooms of the compiler in order and decides nothing that they decide."""
