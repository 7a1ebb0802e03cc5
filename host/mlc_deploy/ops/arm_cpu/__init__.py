"""How operators are computed on ARM CPUs."""
