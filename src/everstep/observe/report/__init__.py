"""A run as people look at it: its directory is read into a model, the model is drawn, the drawings make a page.

The drawings are pure functions from the model to SVG. They ask nobody and know no clock.
"""
