"""Agents: what is learned from, and how the weights follow."""
