"""From a model to an object, and from an object to a board's results. Each step calls the other
packages of the compiler in order; the decisions are theirs."""
