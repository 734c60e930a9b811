"""What may be opened: Zarr v3, numeric types, codecs that cannot run code.

A run may come from anywhere. zarr's v2 object codecs (pickle) execute what they read, so nothing is opened before its
metadata has been looked at as plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sotscope.errors import StoreError

CODECS = frozenset({"bytes", "crc32c", "zstd", "gzip", "blosc", "transpose", "sharding_indexed", "numcodecs.shuffle"})
TYPES = frozenset(
    {
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "bfloat16",
    }
)  # fmt: skip


def check_hierarchy(root: Path) -> dict[str, Any]:
    """The root document of ``root``, after every array's type and codecs were found harmless.

    Raises StoreError for Zarr v2, for object or unknown types, and for codecs outside the allow-list.
    """
    if (root / ".zgroup").exists() or (root / ".zarray").exists() or (root / ".zmetadata").exists():
        raise StoreError(f"{root} is a Zarr v2 store; sotscope opens Zarr v3 only (v2 object codecs can run code).")
    try:
        document: dict[str, Any] = json.loads((root / "zarr.json").read_text())
        children = dict(document["consolidated_metadata"]["metadata"])
        attributes = document["attributes"]
        if not isinstance(attributes["committed"], int) or not isinstance(attributes["complete"], bool):
            raise ValueError("attributes committed and complete")
        for path, child in children.items():
            if child.get("zarr_format") != 3:
                raise StoreError(f"{path} in {root} is not Zarr v3.")
            if child.get("node_type") == "array":
                _check_array(f"{root.parent.name}: {path}", child)
    except FileNotFoundError:
        raise StoreError(f"{root} has no zarr.json: this is not a sotscope run.") from None
    except OSError as error:
        raise StoreError(f"cannot read {root / 'zarr.json'}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{root / 'zarr.json'} is damaged ({error!r}); `sotscope verify --repair` rebuilds it."
        ) from error
    return document


def _check_array(where: str, document: dict[str, Any]) -> None:
    kind = document.get("data_type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise StoreError(f"{where} has data type {kind!r}; only numbers are opened.")
    for name in _codec_names(document.get("codecs", [])):
        if name not in CODECS:
            raise StoreError(f"{where} uses codec {name!r}; allowed are: {', '.join(sorted(CODECS))}.")


def _codec_names(codecs: Any) -> Iterator[str]:
    for codec in codecs if isinstance(codecs, list) else [codecs]:
        yield str(codec.get("name")) if isinstance(codec, dict) else str(codec)
        inner = codec.get("configuration", {}) if isinstance(codec, dict) else {}
        for key in ("codecs", "index_codecs"):
            if key in inner:
                yield from _codec_names(inner[key])
