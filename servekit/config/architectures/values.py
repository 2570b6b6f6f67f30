"""The keys of a config.json, checked as they are read: every complaint names its key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit.config.base import MOST
from servekit.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Values:
    """Each reader takes the names that a number has in different families; the first there counts.

    A key that is null is a key that is not there. All raise ConfigError. `spellings` are names of
    the file itself, where it is read by others.
    """

    tree: Mapping[str, Any]
    spellings: Mapping[str, str] = field(default_factory=dict)

    def get(self, *names: str) -> Any:
        found = self.found(*names)
        return None if found is None else self.tree[found]

    def found(self, *names: str) -> str | None:
        return next((name for name in names if self.tree.get(name) is not None), None)

    def count(self, *names: str) -> int:
        """A number that must be there, at least 1."""
        return self._whole(names, self.get(*names), least=1)

    def count_or(self, otherwise: int, *names: str) -> int:
        value = self.get(*names)
        return otherwise if value is None else self._whole(names, value, least=1)

    def optional(self, *names: str) -> int | None:
        """A number at least 1, or None where it is absent or 0."""
        return self.size(*names) or None

    def size(self, *names: str) -> int:
        """A number that may be 0, and is where it is absent."""
        value = self.get(*names)
        return 0 if value is None else self._whole(names, value, least=0)

    def number(self, otherwise: float, *names: str) -> float:
        """A number above 0."""
        value = self.get(*names)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self._name(names)} must be a number; it is {value!r}")
        if not 1 / MOST**2 < value < MOST:
            raise ConfigError(
                f"{self._name(names)} must be above 0 and below 10^12; it is {value!r}"
            )
        return float(value)

    def needed(self, what: str, *names: str) -> None:
        missing = [name for name in names if self.tree.get(name) is None]
        if missing:
            raise ConfigError(f"{what} need {', '.join(missing)}")

    def flag(self, name: str) -> bool:
        value = self.tree.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise ConfigError(f"{name} must be true or false; it is {value!r}")

    def word(self, *names: str) -> str | None:
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{self._name(names)} must be text; it is {value!r}")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers; empty where it is absent."""
        value = self.tree.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} must be a list of whole numbers; it is {value!r}")
        return [self._whole((name,), item, least=0) for item in value]

    def each(self, name: str, layers: int) -> list[Any] | None:
        """A list with one entry a layer."""
        value = self.tree.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != layers:
            has = f"has {len(value)}" if isinstance(value, list | tuple) else f"is {value!r}"
            raise ConfigError(
                f"{name} must be a list with one for each of {layers} layers; it {has}"
            )
        return list(value)

    def inner(self, name: str) -> "Values":
        """What is nested there; empty where it is absent."""
        value = self.tree.get(name)
        if value is None:
            return Values({})
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be an object; it is {value!r}")
        return Values(value)

    def _name(self, names: tuple[str, ...]) -> str:
        name = self.found(*names) or names[0]
        return self.spellings.get(name, name)

    def _whole(self, names: tuple[str, ...], value: Any, least: int) -> int:
        name = self._name(names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} must be a whole number; it is {value!r}")
        if not least <= value <= MOST:
            raise ConfigError(f"{name} must be at least {least} and below 10^12; it is {value!r}")
        return value
