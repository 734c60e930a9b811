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
        if len(wanted):
            low = int(wanted.min())
            rows = self._array.read(low, int(wanted.max()) + 1)[wanted - low]
        else:
            rows = self._array.read(0, 0)
        for axis, index in reversed(list(enumerate(inner, start=1))):
            rows = rows[(slice(None),) * axis + (index,)]
        out: NDArray[np.float32] = rows.astype(np.float32)
        return out[0] if isinstance(token, int | np.integer) else out


def lazy_variable(array: HotArray, dims: tuple[str, ...], rows: int) -> xr.Variable:
    """An xarray Variable over the first ``rows`` rows of ``array``; values are read when they are used."""
    return xr.Variable(dims, indexing.LazilyIndexedArray(_HotBackend(array, rows)))
