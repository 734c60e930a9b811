"""A registry of things that are loaded when they are first asked for.

Entries are ``"module:attr"`` strings, so that listing them imports nothing. A name that is not in the table is looked
up among the installed entry points of the registry's group: that is how other distributions add to a catalog.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from sotscope.errors import SiteError, SotscopeError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to lazily loaded objects of one kind.

    ``kind`` is the word used in messages ("site"), ``group`` the entry-point group ("sotscope.sites"), ``error`` what
    an unknown name raises.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        *,
        group: str,
        error: type[SotscopeError] = SiteError,
    ) -> None:
        self.kind = kind
        self.group = group
        self._entries = dict(entries)
        self._error = error
        self._loaded: dict[str, T] = {}

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """All names: those of the table first, then those of installed plugins."""
        return list(self)

    def __iter__(self) -> Iterator[str]:
        """As ``names``; installed plugins are looked for only when the table's names are used up."""
        yield from self._entries
        yield from (name for name in self._plugins() if name not in self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._plugins()

    def get(self, name: str) -> T:
        """Load and return the entry called ``name``.

        Raises the registry's error, with close names when there is none, and with the culprit when a plugin fails.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        target = self._entries.get(name)
        if target is not None:
            module, _, attribute = target.partition(":")
            found: Any = getattr(importlib.import_module(module), attribute)
            return found  # type: ignore[no-any-return]
        plugin = self._plugins().get(name)
        if plugin is not None:
            return self._load_plugin(name, plugin)
        raise self._error(unknown(self.kind, name, self.names()))

    def _load_plugin(self, name: str, plugin: EntryPoint) -> T:
        try:
            return plugin.load()  # type: ignore[no-any-return]
        except Exception as error:
            owner = plugin.dist.name if plugin.dist else plugin.value
            why = f"{type(error).__name__}: {error}"
            raise self._error(f"{self.kind} {name!r} of {owner} cannot be loaded ({why}); uninstall it.") from error


def unknown(kind: str, name: str, names: list[str]) -> str:
    """One line for a name that does not exist, with the nearest ones that do."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names)}."
    return f"unknown {kind} {name!r}; {hint}"
