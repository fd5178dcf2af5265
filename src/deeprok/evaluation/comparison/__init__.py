"""Several agents compared on the same grid of parameters."""
