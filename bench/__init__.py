"""Benchmarks: one command, one table each."""
