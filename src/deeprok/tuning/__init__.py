"""Tuning: what suits an algorithm on an environment, found by trying, and tested on seeds and models of its own."""
