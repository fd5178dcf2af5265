"""Experiments: several agents, trained and compared."""
