"""What an application may change on a store that is in use: its collection, its model, its index.

What a retriever knows of a store (:mod:`.facts`) was read when the retriever was made, and answers
were found in the store as it was. So the store's settings are read again at each question, unless
all that they were read from still holds the very objects that it held (:class:`_Seen`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from operator import is_, itemgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from ragcache_integrations.retrievers.keys import (
    FILTERS,
    UNREAD_OUTSIDE_RECORDS,
    freeze_arguments,
    holds_data,
    is_own_class,
    is_own_object,
    is_record,
    settings_within,
    slots_of,
)
from ragcache_integrations.retrievers.sharing import Identity

__all__ = ["LiveState", "settings_of_store"]

_NUMBERS = {bool, int, float}
_OWN = {"dense_vector_name", "sparse_vector_name"}
"""Attributes that LlamaIndex's Qdrant store changes on its own, once it has a collection."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_UNSET = {*_NUMBERS, *_CONTAINERS, type(None)}
"""Classes of a store's attributes that are no settings."""
_PLAIN = (str, int, float, bool, bytes, type(None))
_MOST_ITEMS = 256


def settings_of_store(store: object) -> dict[str, Hashable]:
    """Return the settings of a store or a model by name, each comparable.

    Texts are settings, such as the name of a collection; so are numbers and flags among the fields
    of a pydantic model, but not others, which stores keep to themselves, as they do counters. Other
    objects, such as a client or an index, are compared by identity, and those of the application's
    own by their data, too. Containers hold documents, and change with them.
    """
    declared = type(store).model_fields if isinstance(store, BaseModel) else {}
    attributes: dict[str, Any] = getattr(store, "__dict__", {})
    private = getattr(store, "__pydantic_private__", None) or {}
    settings: dict[str, Hashable] = {}
    items = (*attributes.items(), *((f"private {name}", item) for name, item in private.items()))
    for name, value in items:
        kind = type(value)
        if name in _OWN:
            continue
        if kind is str or (kind in _NUMBERS and name in declared) or isinstance(value, Enum):
            settings[name] = value
        elif value is not None and kind not in _NUMBERS and not isinstance(value, _CONTAINERS):
            if is_own_object(value):
                within = settings_within(value).items()
                settings |= {f"{name}{at}": freeze_arguments({at: held}).key for at, held in within}
            settings[name] = Identity(value)  # last: the object's class has its name, too
    return settings


class _Place(NamedTuple):
    """Something that held objects when the settings were read.

    Attributes:
        owner: An object, a class or a container.
        attribute: The owner's attribute with the mapping of names to objects; empty for a container
            itself.
        names: All keys of the mapping, or the items of the container.
        read: Returns the values of a mapping that count; ``None``: none does.
        values: What it returned.
        read_others: Returns the values that are no settings while they are of their class.
        kinds: The classes of these.
    """

    owner: Any
    attribute: str
    names: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]] | None = None
    values: tuple[Any, ...] = ()
    read_others: Callable[[Any], tuple[Any, ...]] | None = None
    kinds: tuple[type, ...] = ()


class _Seen:
    """The objects that settings were read from, and what these held.

    It is quicker to see that nothing has been replaced than to read the settings again. What it
    cannot compare, such as objects with slots or functions in a record, is always taken for
    changed.

    Args:
        stores: The stores and models whose settings are read.
        retrievers: The retrievers around them, which count by identity alone.
    """

    def __init__(self, stores: list[object], retrievers: list[object]) -> None:
        self._subjects = (*stores, *retrievers)
        self._kinds = tuple(map(type, self._subjects))
        self._number_of_stores = len(stores)
        self._comparable = True
        self._ids: set[int] = set()
        self._places: list[_Place] = []
        for store in stores:
            declared = type(store).model_fields if isinstance(store, BaseModel) else ()
            for _, value in self._note_attributes(store, _UNSET, declared):
                if is_own_object(value) and holds_data(value):
                    self._note(value)
        self._ids.clear()

    def is_unchanged(self, stores: list[object], retrievers: list[object]) -> bool:
        """Whether surely nothing has been replaced since."""
        subjects = (*stores, *retrievers)
        if not (
            self._comparable
            and len(stores) == self._number_of_stores
            and len(subjects) == len(self._subjects)
            and all(map(is_, subjects, self._subjects))
            and all(map(is_, map(type, subjects), self._kinds))
        ):
            return False
        for owner, attribute, names, read, values, read_others, kinds in self._places:
            held = (getattr(owner, attribute, None) or ()) if attribute else owner
            now = tuple(held)  # at once: another thread may change what is there
            if len(now) != len(names) or not all(map(is_, now, names)):
                return False
            try:
                if read is not None and not all(map(is_, read(held), values)):
                    return False
                if read_others is not None and not all(
                    map(is_, map(type, read_others(held)), kinds)
                ):
                    return False
            except LookupError:  # gone meanwhile
                return False
        return True

    def _note_attributes(
        self, owner: object, others: Collection[type], declared: Collection[str] = ()
    ) -> Iterator[tuple[str, Any]]:
        """Note what an object's attributes hold, and yield those that count, by name.

        Args:
            owner: The object.
            others: Classes of values that are no settings.
            declared: Names of fields whose numbers are settings nevertheless.
        """
        for attribute in ("__dict__", "__pydantic_extra__", "__pydantic_private__"):
            held = getattr(owner, attribute, None) or {}
            known = {
                name: value
                for name, value in tuple(held.items())
                if type(value) not in others or (name in declared and type(value) in _NUMBERS)
            }
            self._note_mapping(owner, attribute, held, known)
            yield from known.items()

    def _note_mapping(
        self, owner: object, attribute: str, held: Mapping[Any, Any], known: Mapping[Any, Any]
    ) -> None:
        names = tuple(held)
        read, others = _reader(known), _reader([name for name in names if name not in known])
        values = () if read is None else read(known)
        kinds = () if others is None else tuple(map(type, others(held)))
        self._places.append(_Place(owner, attribute, names, read, values, others, kinds))

    def _note(self, value: Any) -> None:
        """Note all that is read of an object of the application's own, or may be."""
        kind = type(value)
        if isinstance(value, (*_PLAIN, Enum, type)) or id(value) in self._ids:
            return
        self._ids.add(id(value))
        if kind in _CONTAINERS:
            self._note_items(value)
        elif isinstance(value, (*_CONTAINERS, Mapping)) or not holds_data(value) or slots_of(kind):
            self._comparable = False
        elif is_own_object(value) or isinstance(value, BaseModel):
            for base in filter(is_own_class, kind.__mro__):
                held = dict(vars(base))
                self._note_mapping(base, "__dict__", held, held)
            others = () if is_record(value) else UNREAD_OUTSIDE_RECORDS
            for name, item in self._note_attributes(value, others):
                if name in FILTERS and not isinstance(item, _PLAIN):  # whose whole content counts
                    self._comparable = False
                self._note(item)

    def _note_items(self, container: Any) -> None:
        if type(container) is dict:
            held = container.copy()
            self._note_mapping(container, "", held, held)
            items = tuple(held.values())
        else:
            items = tuple(container)
            self._places.append(_Place(container, "", items))
        self._comparable = self._comparable and len(items) <= _MOST_ITEMS
        for item in items:
            self._note(item)


def _reader(names: Iterable[Any]) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return a function that reads items of a mapping by their names."""
    names = [*names]
    return itemgetter(*names, names[0]) if names else None  # of one name it would return no tuple


class LiveState:
    """The settings of a retriever's store and embedding model, to be compared later.

    Args:
        read: Returns the stores and models as they are now, whose settings count; and the
            retrievers around them, whose settings are in the keys of questions.
    """

    def __init__(self, read: Callable[[], tuple[list[object], list[object]]]) -> None:
        self._read = read
        subjects = read()
        # As one: another thread must not mix two of them.
        self._latest = _Seen(*subjects), _settings(*subjects)

    @property
    def key(self) -> Hashable:
        """The settings as they were, as a part of a key."""
        return frozenset(self._latest[1].items())

    def change(self) -> str | None:
        """Return the name of a setting that is another one now; ``None`` if there is none.

        A setting that was not there before is no change, as stores make clients and collections
        when they first need them.
        """
        subjects, (seen, known) = self._read(), self._latest
        if seen.is_unchanged(*subjects):
            return None
        seen = _Seen(*subjects)  # before: what is replaced meanwhile is to be seen the next time
        now = _settings(*subjects)
        for name, value in known.items():
            if now.get(name) != value:
                return name  # also the next time
        self._latest = seen, now
        return None

    def is_current(self) -> bool:
        """Whether all settings are as they were."""
        return self.change() is None


def _settings(stores: list[object], retrievers: list[object]) -> dict[str, Hashable]:
    state: dict[str, Hashable] = {}
    for subjects, inside in ((stores, True), (retrievers, False)):
        for subject in subjects:
            if subject is None:
                continue
            kind = type(subject).__name__
            while kind in state:  # several of a class
                kind += "'"
            state[kind] = Identity(subject)
            if inside:
                for name, value in settings_of_store(subject).items():
                    state[f"{kind}.{name}"] = value
    return state
