"""Fault-tolerance runtime for synchronous distributed training in PyTorch.

This module is the public API and nothing else.
"""

__version__ = "0.1.0.dev0"
