"""Element types of state arrays: float32, float16 and bfloat16, the last as a zarr data type of its own.

bfloat16 is a zarr data type on ``ml_dtypes.bfloat16``. It is never backed by uint16: a data type whose native type is
uint16 would make every u2 array ambiguous. It is registered through the ``zarr.data_type`` entry point and also when
this module is imported, because zarr 3.1 collects those entry points without ever loading them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeGuard

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from zarr.core.dtype import DataTypeValidationError, data_type_registry
from zarr.core.dtype.common import DTypeConfig_V2, DTypeJSON
from zarr.core.dtype.wrapper import TBaseDType, ZDType

from sotscope.errors import StoreError

if TYPE_CHECKING:
    from zarr.core.common import JSON, ZarrFormat

NATIVE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def native(name: str) -> np.dtype[Any]:
    """The numpy dtype of a state array's element type. Raises StoreError for a type that states cannot have."""
    try:
        return NATIVE[name]
    except KeyError:
        raise StoreError(f"states of type {name} cannot be stored; there are: {', '.join(NATIVE)}.") from None


def cast(states: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """``states [row, ...]`` as ``dtype``, and the row of every finite value that became infinite by it."""
    if states.dtype == dtype:
        return states, np.empty(0, np.int64)
    with np.errstate(over="ignore"):
        made = states.astype(dtype)
    lost = np.isinf(made.astype(np.float32)) & np.isfinite(states.astype(np.float32))
    return made, np.argwhere(lost)[:, 0]


@dataclass(frozen=True, kw_only=True)
class BFloat16(ZDType[Any, Any]):
    """The zarr v3 data type ``bfloat16`` on ml_dtypes.bfloat16 (2 bytes, little endian)."""

    dtype_cls: ClassVar[type[TBaseDType]] = type(NATIVE["bfloat16"])
    _zarr_v3_name: ClassVar[Literal["bfloat16"]] = "bfloat16"

    @property
    def item_size(self) -> int:
        return 2

    @classmethod
    def from_native_dtype(cls, dtype: TBaseDType) -> Self:
        if dtype == NATIVE["bfloat16"]:
            return cls()
        raise DataTypeValidationError(f"{dtype} is not bfloat16")

    def to_native_dtype(self) -> Any:
        return NATIVE["bfloat16"]

    @classmethod
    def _check_json_v2(cls, data: DTypeJSON) -> TypeGuard[DTypeConfig_V2[str, None]]:
        return False

    @classmethod
    def _check_json_v3(cls, data: DTypeJSON) -> TypeGuard[Literal["bfloat16"]]:
        return data == cls._zarr_v3_name

    @classmethod
    def _from_json_v2(cls, data: DTypeJSON) -> Self:
        raise DataTypeValidationError("bfloat16 exists in Zarr v3 only")

    @classmethod
    def _from_json_v3(cls, data: DTypeJSON) -> Self:
        if cls._check_json_v3(data):
            return cls()
        raise DataTypeValidationError(f"{data!r} is not bfloat16")

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        if zarr_format == 3:
            return self._zarr_v3_name
        raise ValueError("bfloat16 exists in Zarr v3 only")

    def _check_scalar(self, data: object) -> TypeGuard[float]:
        return isinstance(data, int | float | np.floating | ml_dtypes.bfloat16)

    def cast_scalar(self, data: object) -> Any:
        if self._check_scalar(data):
            return ml_dtypes.bfloat16(float(data))
        raise TypeError(f"{data!r} is not a number")

    def default_scalar(self) -> Any:
        return ml_dtypes.bfloat16(0)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> JSON:
        value = float(data)  # type: ignore[arg-type]
        return "NaN" if np.isnan(value) else value

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        return ml_dtypes.bfloat16(float(data))  # type: ignore[arg-type]


data_type_registry.register("bfloat16", BFloat16)
