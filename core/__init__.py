"""The glassblock engine: cache, scheduler, execution and trace. Imports no user interface."""
