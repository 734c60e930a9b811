"""State arrays as lazily indexed xarray variables, so that a long run opens without being read."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from sotscope.store.hot import HotArray


class _HotBackend(BackendArray):
    """[token, ...] float32 view of a hot array, cut at ``rows``."""

    def __init__(self, array: HotArray, rows: int) -> None:
        self._array = array
        self.shape = (rows, *array.row)
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[np.float32]:
        token, inner = key[0], key[1:]
        wanted = np.atleast_1d(np.arange(self.shape[0])[token])
        # what is no list of indices is cut in the file's map already: one layer reads one layer
        lists = [isinstance(index, np.ndarray) for index in inner]
        cut = tuple(slice(None) if is_list else index for is_list, index in zip(lists, inner, strict=True))
        rows = self._array.take(wanted, cut)
        axis = 1
        for is_list, index in zip(lists, inner, strict=True):
            if is_list:
                rows = rows.take(index, axis=axis)
            axis += not isinstance(index, int | np.integer)
        out: NDArray[np.float32] = rows.astype(np.float32)
        return out[0] if isinstance(token, int | np.integer) else out


def lazy_variable(array: HotArray, dims: tuple[str, ...], rows: int) -> xr.Variable:
    """An xarray Variable over the first ``rows`` rows of ``array``; values are read when they are used."""
    return xr.Variable(dims, indexing.LazilyIndexedArray(_HotBackend(array, rows)))
