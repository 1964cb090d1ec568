"""Measurements of this project's own parts, each beside its peer; no torch."""
