"""The trace: every event of a run, the state folded from it, and what is derived from both."""
