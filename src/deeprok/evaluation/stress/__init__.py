"""Stress: where a trained policy breaks, how far that is from the nominal model, and which parameters matter.

| file | what it is |
|---|---|
| `space` | the ranges that are searched: a box and a margin around it |
| `player` | playing a policy on lists of models, with random numbers that can be asked for again |
| `search` | the models tried: a space-filling design, then differential evolution from the worst of it |
| `sensitivity` | Sobol indices of the design |
| `margin` | how far from the nominal model success holds |
| `stress` | all of it, for one run or several |
| `result` | what was found, and which run is safer |
| `report`, `figure` | the result on a terminal, and drawn |
"""
