"""Paged KV-cache bookkeeping in plain Python: it knows block ids, never tensors."""
