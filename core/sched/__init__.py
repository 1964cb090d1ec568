"""Continuous batching: who runs this step, with how many tokens, in which blocks."""
