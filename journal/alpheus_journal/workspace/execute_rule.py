"""The rule by which the operations of one class are executed and prefetched: one row of `execute.EXECUTE_RULES`.

Each row is in the module that executes its operations. `footprint` returns what an execution reads, and `prefetch`
fetches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import Segment, TableDef, ViewDef
from alpheus_journal.workspace.checks import objects_of
from alpheus_journal.workspace.context import Context, Executed, Execution
from alpheus_journal.workspace.workspace import Workspace

PastName = tuple[int, ObjectName]
"""An object at a version."""
PastNamespace = tuple[int, str]
"""A namespace at a version."""


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that an operation reads, as far as the workspace can tell yet."""

    names: tuple[ObjectName, ...] = ()
    related: tuple[ObjectName, ...] = ()
    """Names from definitions, which may be invalid names."""
    emptied: tuple[str, ...] = ()
    """Namespaces that must be empty."""
    cascaded: tuple[str, ...] = ()
    """Namespaces whose content the operation changes."""
    segments: tuple[Segment, ...] = ()
    """Manifest segments whose content is checked."""
    past: tuple[PastName, ...] = ()
    past_inside: tuple[PastNamespace, ...] = ()


class Stepwise(NamedTuple):
    """An executor that may take long; see `Execution`."""

    run: Callable[[Workspace, Any, Context], Execution]


def read_target(operation: Any, workspace: Workspace) -> Footprint:
    """Return the footprint of an operation that reads only its target."""
    return Footprint(names=(operation.target,))


def name_target(operation: Any) -> tuple[ObjectName, ...]:
    """The settled names of an operation that reads its target alone; see `ExecuteRule.settled`."""
    return (operation.target,)


def read_nothing(operation: Any, workspace: Workspace) -> Footprint:
    """Return the footprint of an operation that reads nothing."""
    return Footprint()


class ExecuteRule(NamedTuple):
    """The functions that execute and prefetch the operations of one class."""

    run: Callable[[Workspace, Any, Context], Executed] | Stepwise
    footprint: Callable[[Any, Workspace], Footprint] = read_target
    """Returns what an operation reads. The footprint grows while its objects are put into the workspace."""
    settled: Callable[[Any], tuple[ObjectName, ...] | None] = lambda operation: None
    """Returns the names that an operation reads, if it only reads names, and always the same ones. None means that
    `footprint` must be called."""


ExecuteRules = dict[type[Any], ExecuteRule]
"""Rules by class of operation."""


def read_around(
    names: tuple[ObjectName, ...], workspace: Workspace, others: Sequence[ObjectName] = ()
) -> Footprint:
    """Return the footprint of objects, the views bound to them, and all objects that they are bound to at any distance.

    `others` are objects named by definitions.
    """
    related: dict[ObjectName, None] = dict.fromkeys(others)
    seen: set[ObjectName] = set()
    waiting = [*names, *others]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        stored = workspace.get(name) if workspace.has(name) else None
        if stored is None or name.kind not in (Kind.TABLE, Kind.VIEW):
            continue
        definition = workspace.decode_readable(name, stored)
        if definition is None:
            continue  # an execution that needs this object raises the error
        assert isinstance(definition, TableDef | ViewDef)
        related.update(dict.fromkeys(objects_of(view)[1] for view in definition.bound_views))
        if isinstance(definition, ViewDef) and definition.schema_binding:
            bound = [found for reference in definition.references for found in objects_of(reference)]
            related.update(dict.fromkeys(bound))
            waiting += bound
    return Footprint(names=names, related=tuple(related))


def read_bound(operation: Any, workspace: Workspace) -> Footprint:
    """The footprint of an operation on its target and on what is bound to it; see `read_around`."""
    return read_around((operation.target,), workspace)
