"""What passes over graphs and loops share: the context they run in, and who watches them."""
