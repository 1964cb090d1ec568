"""Workloads: what arrives when."""
