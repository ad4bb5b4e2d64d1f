"""What an execution of an operation is given, how it hands long work away, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.format import ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import Definition
from alpheus_journal.model.operation_messages import action_type
from alpheus_journal.model.operations import Action, Effect, Operation, Writer
from alpheus_journal.tables.manifest_merge import Made
from alpheus_journal.workspace.workspace import Workspace


class Executed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one operation did. `uploads`: definition path to bytes. `action.operation` has every id assigned."""

    action: Action
    uploads: dict[str, bytes] = {}
    rows_added: int = 0
    rows_removed: int = 0
    made: tuple[Made, ...] = ()  # manifest segments; their bytes are among the uploads


OFFLOADED_SIZE_BYTES_MIN = 256 << 10
"""Of manifest segments: looking at more takes some milliseconds and is done in a thread."""


class Offloaded(NamedTuple):
    """Work of an execution that touches nothing which others may change meanwhile. `size_bytes`: about what it looks
    at, of manifest segments; with much of it the work belongs into a thread."""

    work: Callable[[], Any]
    size_bytes: int


Execution = Generator[Offloaded | None, Any, Executed]
"""An execution that may take long: where it yields, others may have their turn; for work it is sent the result. Nothing
shows before it returns."""


class Spent:
    """What a transaction has cost so far."""

    __slots__ = ("made_size_bytes",)

    def __init__(self) -> None:
        self.made_size_bytes = 0  # of manifest segments that were made of others


class Context(Protocol):
    """What an execution needs besides the workspace."""

    @property
    def keys(self) -> fmt.Keys: ...

    @property
    def transaction_id(self) -> str: ...

    @property
    def writes(self) -> frozenset[str]:
        """Ids of the tables for which the transaction brings files."""
        ...

    @property
    def writer(self) -> Writer | None:
        """The idempotent writer that the tables with new rows remember."""
        ...

    @property
    def version(self) -> int:
        """In which the transaction will be."""
        ...

    @property
    def begin_version(self) -> int:
        """At which the transaction began: by what the workspace has of it (`has_past`) its claims are judged. -1: they
        are not."""
        ...

    @property
    def spent(self) -> Spent: ...

    @property
    def is_trial(self) -> bool:
        """What only a commit can look up is taken for granted: that data files are as manifest segments say."""
        ...

    @property
    def merges(self) -> bool:
        """Small manifest segments of a table that rows are added to are made one."""
        ...

    @property
    def brought(self) -> dict[str, set[str]]:
        """By table id, the paths of the segments and data files that earlier operations of the transaction added."""
        ...

    def uuid4(self) -> str: ...


class ExecutionContext(msgspec.Struct, frozen=True):
    keys: fmt.Keys
    transaction_id: str
    uuid4: Callable[[], str]
    writes: frozenset[str] = frozenset()
    writer: Writer | None = None
    version: int = 0
    is_trial: bool = False
    merges: bool = True
    brought: dict[str, set[str]] = msgspec.field(default_factory=dict)
    begin_version: int = -1
    spent: Spent = msgspec.field(default_factory=Spent)


class Changes:
    """What one operation does to objects. Nothing shows in the workspace before `finish`."""

    def __init__(self, workspace: Workspace, operation: Operation, context: Context) -> None:
        self.workspace = workspace
        self.operation = operation
        self.context = context
        self.rows_added = 0
        self.rows_removed = 0
        self._after: dict[ObjectName, StoredObject | None] = {}
        self._uploads: dict[str, bytes] = {}
        self._made: tuple[Made, ...] = ()

    def make(self, made: Sequence[Made]) -> None:
        """Manifest segments, whose content the workspace then has."""
        self._made += tuple(made)
        for one in made:
            self._uploads[one.segment.path] = one.data

    def put(self, name: ObjectName, definition: Definition) -> None:
        """The object gets this definition, in a file of its own. Raises InvalidInput (`too_large`)."""
        path = fmt.definition_path(name, self.context.uuid4())
        stored = StoredObject(path, encode_definition(definition))
        self.place(name, stored)
        self._uploads[path] = stored.definition
        self.workspace.remember_written(stored, definition)

    def place(self, name: ObjectName, stored: StoredObject | None) -> None:
        """The object is what lies at a definition's path already; None: it is gone."""
        earlier = self._after.get(name)
        if earlier is not None:
            self._uploads.pop(earlier.path, None)
        self._after[name] = stored

    def get(self, name: ObjectName) -> StoredObject | None:
        """An object as it stands after the changes so far."""
        return self._after[name] if name in self._after else self.workspace.get(name)

    def finish(self, operation: Operation | None = None) -> Executed:
        """Apply all to the workspace. `operation`: as it is recorded, where ids were assigned."""
        operation = operation or self.operation
        effects: list[Effect] = []
        for name, stored in self._after.items():
            before = self.workspace.get(name)
            effects.append(
                Effect(
                    name=name,
                    path_before=before.path if before else "",
                    path_after=stored.path if stored else "",
                )
            )
        for name, stored in self._after.items():
            self.workspace.set(name, stored)
        for made in self._made:
            self.workspace.add_segment(made.segment.path, made.content)
        target = operation.target
        path_before = path_after = ""
        also: list[Effect] = []
        for effect in effects:
            if effect.name == target:
                path_before, path_after = effect.path_before, effect.path_after
            else:
                also.append(effect)
        also.sort(key=lambda effect: self.context.keys.key(effect.name))
        return Executed(
            action=Action(
                type=action_type(operation),
                name=target,
                operation=operation,
                path_before=path_before,
                path_after=path_after,
                also=tuple(also),
            ),
            uploads=self._uploads,
            rows_added=self.rows_added,
            rows_removed=self.rows_removed,
            made=self._made,
        )


def simple_change(
    workspace: Workspace, operation: Operation, context: Context, after: Definition | None
) -> Executed:
    """The operation gives its target this definition, and does nothing else. None: the target is gone."""
    changes = Changes(workspace, operation, context)
    if after is None:
        changes.place(operation.target, None)
    else:
        changes.put(operation.target, after)
    return changes.finish()
