"""Screening: whether robustness can pay in an environment at all, before anything is trained.

| file | what it is |
|---|---|
| `discretise` | an environment on a grid of its states: a sparse table for each model |
| `planning` | dynamic programming on these tables |
| `screen` | the policies, and how they do in the environment itself |
| `result` | their scores, and the verdict |
"""
