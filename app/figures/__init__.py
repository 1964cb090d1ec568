"""Pure functions from a trace or a snapshot to a Plotly figure."""
