"""Exact copies of batches, fast: one memmove per storage.

torch's own copy shares the bytes out to threads, and waits for the last of them: on a busy machine for milliseconds.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

_Storage: Any = torch.UntypedStorage
_IMMUTABLE = frozenset({str, bytes, int, float, complex, bool, type(None)})


class NotCopied(Exception):
    """Too large, or of a kind whose copy might differ from it."""


def copy_batch(batch: Any, most_bytes: int | None = None) -> Any:
    """Plain tensors and arrays in plain containers, with their strides, and shared memory still shared among them."""
    return _Copier(most_bytes).copy(batch)


class _Copier:
    def __init__(self, most_bytes: int | None) -> None:
        self._left = math.inf if most_bytes is None else most_bytes
        self._copies: dict[int, Any] = {}
        """By identity: the same object twice is twice the same copy."""
        self._storages: dict[tuple[int, int], torch.UntypedStorage] = {}

    def copy(self, part: Any) -> Any:
        kind = type(part)
        if kind in _IMMUTABLE:
            return part
        if id(part) not in self._copies:
            self._copies[id(part)] = self._copy(part, kind)
        return self._copies[id(part)]

    def _copy(self, part: Any, kind: type) -> Any:
        if kind is torch.Tensor:
            return self._tensor(part)
        if kind is dict:
            return {key: self.copy(value) for key, value in part.items()}
        if kind is list:
            return [self.copy(item) for item in part]
        if kind is tuple:
            return tuple(self.copy(item) for item in part)
        if issubclass(kind, tuple) and hasattr(kind, "_make"):
            return kind._make(self.copy(item) for item in part)
        if (kind.__module__, kind.__name__) == ("numpy", "ndarray"):  # there is a torch without NumPy
            return self._array(part)
        raise NotCopied(kind.__name__)

    def _array(self, array: Any) -> Any:
        if array.base is not None or array.dtype.hasobject:
            raise NotCopied("an array that is a view, or holds objects")
        self._spend(array.nbytes)
        return array.copy(order="K")

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        special = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
        if not plain or special or tensor.is_inference():
            raise NotCopied("a tensor that is more than its numbers")
        storage = self._storage(tensor.untyped_storage())
        bare = torch.empty(0, dtype=tensor.dtype)
        return bare.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def _storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._storages:
            self._spend(storage.nbytes())
            self._storages[key] = copy = _Storage(storage.nbytes())
            ctypes.memmove(copy.data_ptr(), storage.data_ptr(), storage.nbytes())
        return self._storages[key]

    def _spend(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            raise NotCopied("too large")
