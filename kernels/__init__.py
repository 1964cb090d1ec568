"""Tensors in, tensors out: writing, copying and reading the paged KV cache.

This file stays free of imports: transformers probes for a package of this name.
"""
