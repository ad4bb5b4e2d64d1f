"""The context of an execution, its changes and its result, and work that an execution offloads."""

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
    """The result of one operation. `uploads` are definition files by path. `action.operation` has every id assigned."""

    action: Action
    uploads: dict[str, bytes] = {}
    rows_added: int = 0
    rows_removed: int = 0
    made: tuple[Made, ...] = ()  # new manifest segments, whose bytes are among the uploads


OFFLOADED_SIZE_BYTES_MIN = 256 << 10
"""Work over at least these bytes of manifest segments takes some milliseconds and runs in a thread."""


class Offloaded(NamedTuple):
    """Work of an execution that may run in a thread, because it touches nothing that can change meanwhile.

    `size_bytes` estimates the bytes of manifest segments that the work looks at. Large work belongs into a thread.
    """

    work: Callable[[], Any]
    size_bytes: int


Execution = Generator[Offloaded | None, Any, Executed]
"""An execution that may take long. Where it yields None, the event loop may take a turn. Where it yields work, it is
sent the work's result. It changes the workspace only at its end."""


class Spent:
    """The costs of a transaction so far."""

    __slots__ = ("made_size_bytes",)

    def __init__(self) -> None:
        self.made_size_bytes = 0  # of manifest segments that were made from other segments


class Context(Protocol):
    """The inputs of an execution besides the workspace."""

    @property
    def keys(self) -> fmt.Keys: ...

    @property
    def transaction_id(self) -> str: ...

    @property
    def writes(self) -> frozenset[str]:
        """The ids of the tables that the transaction brings files for."""
        ...

    @property
    def writer(self) -> Writer | None:
        """The idempotent writer whose sequence is recorded in the tables with new rows."""
        ...

    @property
    def version(self) -> int:
        """The version that the transaction will be part of."""
        ...

    @property
    def begin_version(self) -> int:
        """The version at which the transaction began. Objects of it in the workspace (`has_past`) are compared with the
        transaction's claims. -1 means no comparison."""
        ...

    @property
    def principal(self) -> str:
        """The principal in the transaction's header."""
        ...

    @property
    def spent(self) -> Spent: ...

    @property
    def is_trial(self) -> bool:
        """True outside a commit: data files are then assumed to match their manifest segments."""
        ...

    @property
    def merges(self) -> bool:
        """Whether small manifest segments of a table that gets rows are merged."""
        ...

    @property
    def brought(self) -> dict[str, set[str]]:
        """The paths of segments and data files that earlier operations of the transaction added, by table id."""
        ...

    @property
    def records(self) -> bool:
        """Whether the counters of undropped tables are decided, and recorded in the operation. False where a recorded
        operation is executed again."""
        ...

    @property
    def checksums(self) -> bool:
        """Whether definitions are stored with their checksums, and data files may be listed with theirs: the version
        before this one has revision 2."""
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
    records: bool = False
    checksums: bool = False
    principal: str = ""
    spent: Spent = msgspec.field(default_factory=Spent)


class Changes:
    """The changes of objects by one operation. The workspace has none of them before `finish`."""

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
        """Add new manifest segments. After `finish` the workspace has their contents."""
        self._made += tuple(made)
        for one in made:
            self._uploads[one.segment.path] = one.data

    def put(self, name: ObjectName, definition: Definition) -> None:
        """Give the object this definition, in a new file. Raises InvalidInput (`too_large`)."""
        path = fmt.definition_path(name, self.context.uuid4())
        stored = StoredObject(path, encode_definition(definition, checksum=self.context.checksums))
        self.place(name, stored)
        self._uploads[path] = stored.definition
        self.workspace.remember_written(stored, definition)

    def place(self, name: ObjectName, stored: StoredObject | None) -> None:
        """Give the object a definition that is already stored. None drops the object."""
        earlier = self._after.get(name)
        if earlier is not None:
            self._uploads.pop(earlier.path, None)
        self._after[name] = stored

    def get(self, name: ObjectName) -> StoredObject | None:
        """Return an object as it stands after the changes so far."""
        return self._after[name] if name in self._after else self.workspace.get(name)

    def finish(self, operation: Operation | None = None) -> Executed:
        """Apply all changes to the workspace. `operation` is the one to record, where ids were assigned."""
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
        keys = self.context.keys
        also.sort(key=lambda effect: "" if effect.name == fmt.CATALOG else keys.key(effect.name))
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
    """Give the operation's target this definition, and change nothing else. None drops the target."""
    changes = Changes(workspace, operation, context)
    if after is None:
        changes.place(operation.target, None)
    else:
        changes.put(operation.target, after)
    return changes.finish()
