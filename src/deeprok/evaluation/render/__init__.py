"""Films of trained policies, side by side from the same start and with the same random numbers.

`render.py` has `deeprok.render`; `episode.py` plays what is seen, `canvas.py` paints shapes, `pane.py` puts pictures
and words together, and `files.py` writes GIFs, videos and film strips.
"""
