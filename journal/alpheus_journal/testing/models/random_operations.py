"""Random operations over few names, for tests against the model of a catalog."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import (
    Column,
    JobDeclaration,
    Reference,
)
from alpheus_journal.model.operations import (
    AddColumn,
    AdvancePipeline,
    ClaimSubscription,
    CommitIceberg,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropView,
    Operation,
    RegisterTable,
    RenameObject,
    ReplaceView,
    RestoreTable,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.testing.models.catalog import Model, ModelSubscription, ModelTable, Past

_NAMESPACES = ("a", "b", "ü-é")
_NAMES = ("x", "y", "名𝄞")


def random_operation(
    rng: random.Random, model: Model, identities: Identities, past: Past | None = None
) -> Operation:
    """Return a random operation over few names, without data files, that is likely to be possible in `model`.

    Operations that name an earlier version come only if `past` has versions.
    """
    properties = {rng.choice("pqr"): str(rng.randrange(9))}
    kinds = [
        "catalog",
        "namespace",
        "namespace",
        "table",
        "table",
        "table",
        "view",
        "view",
        "pipeline",
        "rename",
        "subscription",
    ]
    kind = rng.choice(kinds + ["past", "past"] * bool(past))
    namespace, name = rng.choice(_NAMESPACES), rng.choice(_NAMES)
    there = [key.removeprefix("namespace ") for key in model if key.startswith("namespace ")]
    if kind in ("table", "view") and there and rng.random() < 0.9:
        namespace = rng.choice(there)
    unset = tuple(key for key in "pqr" if key not in properties and rng.random() < 0.2)
    if kind == "catalog":
        return UpdateCatalog(set=properties, unset=unset)
    if kind == "pipeline":
        return _random_pipeline_operation(rng, model, identities)
    if kind == "subscription":
        return _random_subscription_operation(rng, model, identities)
    if kind == "namespace":
        if f"namespace {namespace}" not in model or rng.random() < 0.1:
            return CreateNamespace(name=namespace, namespace_id=identities.uuid4(), properties=properties)
        if rng.random() < 0.5:
            return DropNamespace(name=namespace, cascade=rng.random() < 0.3)
        return UpdateNamespace(name=namespace, set=properties, unset=unset)
    if kind == "rename":
        of = rng.choice((Kind.TABLE, Kind.TABLE, Kind.VIEW))
        namespace, name = _pick_existing(rng, model, of) or (namespace, name)
        return RenameObject(
            kind=of,
            namespace=namespace,
            name=name,
            new_namespace=rng.choice(there or _NAMESPACES),
            new_name=rng.choice(_NAMES),
        )
    if kind == "view":
        return _random_view_operation(rng, model, identities, namespace, name)
    if kind == "past":
        assert past
        return _random_past_operation(rng, model, past, namespace, name)
    return _random_table_operation(rng, model, identities, namespace, name)


def _random_pipeline_operation(rng: random.Random, model: Model, identities: Identities) -> Operation:
    pipeline, job = rng.choice("mn"), rng.choice("jk")
    jobs = model.get(f"pipeline {pipeline}", {})
    assert isinstance(jobs, dict)
    expected = jobs.get(job, "") if rng.random() < 0.9 else identities.uuid7()
    # A separate generator, so that the other operations of a seed do not change.
    rng = random.Random(f"{pipeline} {job} {expected} {sorted(jobs.items())}")
    if rng.random() < 0.15:
        return RenameObject(
            kind=Kind.PIPELINE,
            namespace="",
            name=pipeline,
            new_namespace="",
            new_name=rng.choice("mn"),
        )
    former = rng.choice("jk") if rng.random() < 0.15 else ""
    if former:
        expected = jobs.get(former, "")
    is_first = rng.random() < 0.2
    return AdvancePipeline(
        name=pipeline,
        job=job,
        expected_transaction_id=expected,
        pinned_version=0,
        former_job=former,
        expected_pipeline_id="" if is_first else None,
        declaration=JobDeclaration(open=rng.random() < 0.5) if rng.random() < 0.3 else None,
    )


def _random_subscription_operation(rng: random.Random, model: Model, identities: Identities) -> Operation:
    name = rng.choice("st")
    found = model.get(f"subscription {name}")
    if found is None or rng.random() < 0.1:
        return CreateSubscription(
            name=name,
            subscription_id=identities.uuid4(),
            lease_millis=1000,
            names=("a.x",),
            kinds=(Kind.TABLE,),
        )
    assert isinstance(found, ModelSubscription)
    if rng.random() < 0.3:
        return DropSubscription(name=name)
    holds = rng.random() < 0.8
    return ClaimSubscription(
        name=name,
        subscription_id=found.id,
        expected_epoch=found.epoch + (rng.random() < 0.1),
        expected_position_path=found.position_path,
        next_version=rng.randrange(9),
        holder="h" if holds else "",
        position_path=fmt.position_path(identities.uuid4()) if holds else "",
        previous_position_path=found.position_path,
    )


def _random_table_operation(
    rng: random.Random, model: Model, identities: Identities, namespace: str, name: str
) -> Operation:
    table = model.get(f"table {namespace}.{name}")
    properties = {rng.choice("pqr"): str(rng.randrange(9))}
    if table is None or rng.random() < 0.1:
        if rng.random() < 0.2:
            return RegisterTable(
                namespace=namespace,
                name=name,
                table_id=identities.uuid4(),
                metadata_location=f"s3://b/{rng.randrange(3)}.json",
            )
        return CreateTable(
            namespace=namespace,
            name=name,
            table_id=identities.uuid4(),
            columns=(Column(id=1, name="c", type=rng.choice(("INT4", "INT8"))),),
            properties=properties,
        )
    assert isinstance(table, ModelTable)
    if rng.random() < 0.4:
        return DropTable(namespace=namespace, name=name)
    if table.location and rng.random() < 0.7:
        expected = table.location if rng.random() < 0.8 else "s3://b/elsewhere.json"
        location = f"s3://b/{rng.randrange(9)}.json"
        return CommitIceberg(namespace=namespace, name=name, metadata_location=location, expected=expected)
    if rng.random() < 0.4:
        unset = tuple(key for key in "pqr" if key not in properties and rng.random() < 0.2)
        return UpdateTable(namespace=namespace, name=name, set=properties, unset=unset)
    return _random_columns(rng, table, namespace, name)


def _random_columns(rng: random.Random, table: ModelTable, namespace: str, name: str) -> UpdateTable:
    def some(rate: float) -> list[str]:
        return [column[0] for column in table.columns if rng.random() < rate]

    names = some(1)
    dropped, renamed, retyped = some(0.2), some(0.2), some(0.2)
    added = [rng.choice("cdefg") for _ in range(rng.choice((0, 1, 1, 2)))]
    order: list[str] = []
    if rng.random() < 0.2:
        order = [name for name in names if name not in dropped and name not in renamed] + added
        rng.shuffle(order)
    clean = [set(renamed) - set(dropped), set(retyped) - set(dropped) - set(renamed)]
    operation = UpdateTable(
        namespace=namespace,
        name=name,
        add_columns=tuple(
            AddColumn(
                column=Column(id=0, name=n, type=rng.choice(("INT4", "INT8")), nullable=rng.random() < 0.9)
            )
            for n in added
        ),
        drop_columns=tuple(dropped),
        rename_columns={old: rng.choice("CDEFG") for old in sorted(clean[0])},
        retype_columns={
            old: Column(id=0, name="", type=rng.choice(("INT4", "INT8"))) for old in sorted(clean[1])
        },
        nullable_columns={old: rng.random() < 0.8 for old in some(0.2) if old not in dropped},
        column_order=tuple(order),
    )
    return operation if operation.changes_columns else msgspec.structs.replace(operation, set={"p": "0"})


def _random_view_operation(
    rng: random.Random, model: Model, identities: Identities, namespace: str, name: str
) -> Operation:
    there = [
        Reference(*key.split(" ", 1)[1].split(".")) for key in model if key.startswith(("table ", "view "))
    ]
    references = tuple({rng.choice(there): 0 for _ in range(rng.randrange(3))}) if there else ()
    if rng.random() < 0.1:
        references = (*references, Reference("a", "nowhere"))
    fields: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "sql": f"select {rng.randrange(9)}",
        "dialect": "spark",
        "references": references,
        "schema_binding": rng.random() < 0.5,
        "properties": {"p": str(rng.randrange(9))},
    }
    if f"view {namespace}.{name}" not in model or rng.random() < 0.1:
        return CreateView(view_id=identities.uuid4(), **fields)
    return DropView(namespace=namespace, name=name) if rng.random() < 0.4 else ReplaceView(**fields)


def _pick_existing(rng: random.Random, model: Model, kind: Kind) -> tuple[str, str] | None:
    """Return namespace and name of some table or view, or sometimes None."""
    there = [key.split(" ", 1)[1] for key in model if key.startswith(f"{kind.label} ")]
    if not there or rng.random() < 0.1:
        return None
    namespace, name = rng.choice(there).split(".")
    return namespace, name


def _random_past_operation(
    rng: random.Random, model: Model, past: Past, namespace: str, name: str
) -> Operation:
    version = rng.choice(sorted(past))
    if rng.random() < 0.4:
        namespace, name = _pick_existing(rng, model, Kind.TABLE) or (namespace, name)
        return RestoreTable(namespace=namespace, name=name, version=version)
    again = rng.random() < 0.6
    gone = {key: value for key, value in past[version].items() if key not in model or rng.random() < 0.1}
    if rng.random() < 0.4:
        lost = [key.removeprefix("namespace ") for key in gone if key.startswith("namespace ")]
        namespace = rng.choice(lost or [namespace])
        return Undrop(
            kind=Kind.NAMESPACE,
            namespace=namespace,
            version=version,
            new_namespace=namespace if again else rng.choice(_NAMESPACES),
        )
    kind = rng.choice((Kind.TABLE, Kind.VIEW))
    namespace, name = _pick_existing(rng, gone, kind) or (namespace, name)
    return Undrop(
        kind=kind,
        namespace=namespace,
        name=name,
        version=version,
        new_namespace=namespace if again else rng.choice(_NAMESPACES),
        new_name=name if again else rng.choice(_NAMES),
    )
