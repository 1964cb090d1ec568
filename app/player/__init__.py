"""The Python side of the canvas player."""
