"""Tensors in, tensors out: writing and reading the paged KV cache."""
