"""Training: the compiled program, the loop around it, and many runs at once."""
