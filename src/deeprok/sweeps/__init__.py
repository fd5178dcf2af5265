"""Sweeps: many trials of settings, algorithms and environments, from one file."""
