"""Random verbs on the rows of random tables agree with a plain list of rows, after each verb and at old versions."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from both_ways import catalog as catalog

from alpheus import Catalog

Row = dict[str, Any]  # by a column's first name, which never changes here
Truth = bool | None
Where = tuple[str, Callable[[Row], Truth]]  # a text with {names}

VALUES: dict[str, list[Any]] = {
    "id": [None, *range(8)],
    "s": [None, "", "a", "b", "ü"],
    "f": [None, 0.0, -0.0, 1.5, math.nan, -math.inf],
    "day": [None, dt.date(2026, 2, 28), dt.date(2026, 3, 1), dt.date(1969, 12, 31)],
    "ts": [None, dt.datetime(2026, 3, 1, 23, 59, tzinfo=dt.UTC), dt.datetime(2026, 3, 2, tzinfo=dt.UTC)],
    "part": [None, {"x": None, "y": 1}, {"x": 1, "y": None}, {"x": 2, "y": 2}],
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("part", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
    ]
)
VERBS = [
    "append", "append", "append", "overwrite", "delete", "delete", "update", "update", "merge", "merge", "replace",
    "compact", "columns", "restore", "together",
]  # fmt: skip
SHAPES: list[dict[str, Any]] = [
    {},
    {"partition_by": ["s"]},
    {"partition_by": ["month(day)", "s"], "sort_by": ["id desc", "f nulls last"]},
    {"partition_by": ["day(ts)"]},
    {"sort_by": ["f desc", "s nulls last"]},
]


def invert(value: Truth) -> Truth:
    return None if value is None else not value


def both(one: Truth, other: Truth) -> Truth:
    return False if False in (one, other) else None if None in (one, other) else True


def either(one: Truth, other: Truth) -> Truth:
    return True if True in (one, other) else None if None in (one, other) else False


def compared(value: Any, op: str, other: Any) -> Truth:
    """Compare as Spark does: NaN equals itself, and is above all numbers."""
    if value is None:
        return None
    rank = (1, 0) if value != value else (0, value)
    against = (1, 0) if other != other else (0, other)
    return {"=": rank == against, "<": rank < against, ">=": rank >= against}[op]


def literal(value: Any) -> str:
    if isinstance(value, float):
        if value != value:
            return "double('NaN')"
        return f"double('{value}')" if math.isinf(value) else repr(value)
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


class Model:
    """One table, its rows as a list, and its rows at each version."""

    def __init__(self, catalog: Catalog, name: str, rng: random.Random) -> None:
        self.catalog = catalog
        self.name = name
        self.rng = rng
        self.rows: list[Row] = []
        self.names = {key: key for key in VALUES}  # first name -> today's name, of existing columns
        self.defaults: dict[str, Any] = {}
        self.past: dict[int, tuple[list[Row], dict[str, str]]] = {}
        self.log: list[str] = []
        self.shape = rng.choice(SHAPES)
        catalog.create_table(name, SCHEMA, **self.shape)

    # -- random parts

    def value(self, key: str) -> Any:
        return self.rng.choice(VALUES[key]) if key in VALUES else self.rng.choice([None, 7, 8])

    def new_row(self) -> Row:
        return {key: self.value(key) for key in self.names}

    def new_rows(self, most: int = 12) -> list[Row]:
        return [self.new_row() for _ in range(self.rng.randrange(most))]

    def where(self, depth: int = 2) -> Where:
        kind = self.rng.choice(["compare", "in", "null", "field", "and", "or", "not", "prefix"])
        if depth == 0 and kind in ("and", "or", "not"):
            kind = "compare"
        if kind in ("and", "or"):
            (one, is_one), (other, is_other) = self.where(depth - 1), self.where(depth - 1)
            join = both if kind == "and" else either
            return f"({one}) {kind} ({other})", lambda row: join(is_one(row), is_other(row))
        if kind == "not":
            text, truth = self.where(depth - 1)
            return f"not ({text})", lambda row: invert(truth(row))
        if kind == "field" and "part" in self.names:
            number = self.rng.randrange(3)
            return f"{{part}}.x >= {number}", lambda row: compared(
                None if row["part"] is None else row["part"]["x"], ">=", number
            )
        if kind == "prefix" and "s" in self.names:
            return "{s} like 'a%'", lambda row: None if row["s"] is None else row["s"].startswith("a")
        key = self.rng.choice([key for key in self.names if key != "part"])
        some = [value for value in (self.value(key) for _ in range(3)) if value is not None]
        if kind == "null" or not some:
            return f"{{{key}}} is null", lambda row: row[key] is None
        if kind == "in":
            listed = ", ".join(map(literal, some))
            return (
                f"{{{key}}} in ({listed})",
                lambda row: None if row[key] is None else any(compared(row[key], "=", one) for one in some),
            )
        op = self.rng.choice(["=", "<", ">="])
        return f"{{{key}}} {op} {literal(some[0])}", lambda row: compared(row[key], op, some[0])

    # -- both sides

    def given(self, rows: list[Row], keys: list[str] | None = None) -> list[Row]:
        return [{self.names[key]: row[key] for key in keys or self.names} for row in rows]

    def table(self, rows: list[Row]) -> Counter[str]:
        return Counter(
            repr([(self.names[key], plain(row[key])) for key in sorted(self.names)]) for row in rows
        )

    def step(self) -> None:
        rng = self.rng
        text, truth = self.where()
        sql = text.format(**{key: f"`{name}`" for key, name in self.names.items()})
        verb = rng.choice(VERBS)
        self.log.append(f"{verb} {sql}")
        self.run(self.catalog, verb, sql, truth)

    def run(self, target: Any, verb: str, sql: str, truth: Callable[[Row], Truth]) -> None:
        """Run one verb on a catalog or a transaction, and on the model."""
        rng = self.rng

        def hit(row: Row) -> bool:
            return truth(row) is True

        if verb == "append":
            rows = self.new_rows()
            target.append(self.name, self.given(rows))
            self.rows = self.rows + rows
        elif verb == "overwrite":
            if rng.random() < 0.7:
                return
            self.rows = self.new_rows()
            target.overwrite(self.name, self.given(self.rows))
        elif verb == "delete":
            target.delete(self.name, sql, mode=rng.choice(["predicate", "rewrite"]))
            self.rows = [row for row in self.rows if not hit(row)]
        elif verb == "update":
            key = rng.choice(sorted(self.names))
            value = self.value(key)
            change: Any = {self.names[key]: value}
            adds_one = key == "id" and rng.random() < 0.5
            if adds_one:
                change = {self.names["id"]: pc.field(self.names["id"]) + 1}

            def new(row: Row) -> Any:
                if adds_one:
                    return None if row["id"] is None else row["id"] + 1
                return value

            target.update(self.name, change, sql, mode=rng.choice([None, "predicate", "rewrite"]))
            self.rows = [row | {key: new(row)} if hit(row) else row for row in self.rows]
        elif verb == "replace":
            rows = [row for row in self.new_rows(20) if hit(row)]
            target.overwrite(self.name, self.given(rows), where=sql)
            self.rows = [row for row in self.rows if not hit(row)] + rows
        elif verb == "merge":
            self.merge(target)
        elif verb == "compact":
            target.compact(self.name, target_size=rng.choice([1, 1500, 1 << 20]))
        elif verb == "columns":
            self.change_columns(target)
        elif verb == "restore" and target is self.catalog:
            if self.past and rng.random() < 0.5:
                version = rng.choice(sorted(self.past))
                target.restore_table(self.name, version)
                self.rows, self.names = self.past[version]
        elif verb == "together" and target is self.catalog:
            with target.transaction() as tx:
                for _ in range(rng.randrange(1, 4)):
                    verb = rng.choice(
                        ["append", "delete", "update", "merge", "replace", "compact", "columns"]
                    )
                    text, truth = self.where()
                    sql = text.format(**{key: f"`{name}`" for key, name in self.names.items()})
                    self.log.append(f"  {verb} {sql}")
                    self.run(tx, verb, sql, truth)
                    assert self.read(tx) == self.table(self.rows)

    def merge(self, target: Any) -> None:
        rng = self.rng
        on = list(rng.choice([["id"], ["s"], ["id", "s"], ["f"], ["ts", "id"], ["day"]]))
        if any(key not in self.names for key in on):
            return
        source: list[Row] = []
        seen: set[Any] = set()
        for row in self.new_rows():
            key = key_of(row, on)
            if key is None or key not in seen:
                seen.add(key)
                source.append(row)
        keys = list(self.names)
        if rng.random() < 0.3:
            keys = [key for key in keys if key in on or rng.random() < 0.5]
        matched, unmatched = rng.choice(["update", "delete", "ignore"]), rng.choice(["insert", "ignore"])
        if not source:
            return
        self.log.append(f"  merge on {on} of {keys}: {matched}, {unmatched}")
        target.merge(
            self.name,
            self.given(source, keys),
            on=[self.names[key] for key in on],
            matched=matched,
            unmatched=unmatched,
            mode=rng.choice([None, "predicate", "rewrite"]),
        )
        by_key = {key_of(row, on): row for row in source if key_of(row, on) is not None}
        found = {key_of(row, on) for row in self.rows}
        rows: list[Row] = []
        for row in self.rows:
            other = by_key.get(key_of(row, on))
            if other is None or matched == "ignore":
                rows.append(row)
            elif matched == "update":
                rows.append(row | {key: other[key] for key in keys})
        if unmatched == "insert":
            absent = {key: self.defaults.get(key) for key in self.names}
            rows += [
                absent | {key: row[key] for key in keys}
                for row in source
                if key_of(row, on) is None or key_of(row, on) not in found
            ]
        self.rows = rows

    def change_columns(self, target: Any) -> None:
        rng, names = self.rng, dict(self.names)
        # these may be keys of partitions and orders, which cannot be dropped
        keys = {"s", "day", "ts", "id", "f"}
        kind = rng.choice(["add", "add", "rename", "drop"])
        fresh = f"c{len(self.log)}"
        if kind == "add":
            default = rng.choice([None, 7, 9])
            names[fresh] = fresh
            target.update_table(
                self.name, add_columns={fresh: pa.int32()}, defaults={fresh: default} if default else None
            )
            self.defaults[fresh] = default
            self.rows = [row | {fresh: default} for row in self.rows]
        elif kind == "rename":
            key = rng.choice(sorted(names))
            target.update_table(self.name, rename_columns={names[key]: f"{key}_{fresh}"})
            names[key] = f"{key}_{fresh}"
        else:
            left = sorted(set(names) - keys)
            if not left:
                return
            key = rng.choice(left)
            target.update_table(self.name, drop_columns=[names.pop(key)])
            self.rows = [{one: value for one, value in row.items() if one != key} for row in self.rows]
        self.log.append(f"  {kind} {names}")
        self.names = names

    def read(self, reader: Any) -> Counter[str]:
        table = reader.read(self.name)
        today = {name: key for key, name in self.names.items()}
        assert set(table.column_names) == set(today)
        return self.table([{today[name]: value for name, value in row.items()} for row in table.to_pylist()])

    def check(self) -> None:
        found, expected = self.read(self.catalog), self.table(self.rows)
        assert found == expected, (found - expected, expected - found)
        text, truth = self.where()
        sql = text.format(**{key: f"`{name}`" for key, name in self.names.items()})
        found = self.catalog.read(self.name, where=sql)
        today = {name: key for key, name in self.names.items()}
        rows = [{today[name]: value for name, value in row.items()} for row in found.to_pylist()]
        assert self.table(rows) == self.table([row for row in self.rows if truth(row) is True]), sql
        scan = self.catalog.scan(self.name, where=sql)
        assert scan.count() == found.num_rows, sql
        streamed = pa.Table.from_batches(scan.to_batches(), schema=scan.schema)
        assert repr(streamed.to_pylist()) == repr(found.to_pylist())  # as text, so that NaN equals NaN
        self.past[self.catalog.version()] = self.rows, self.names

    def check_past(self) -> None:
        today = self.rows, self.names
        for version in self.rng.sample(sorted(self.past), min(4, len(self.past))):
            self.rows, self.names = self.past[version]
            assert self.read(self.catalog.at(version)) == self.table(self.rows), version
        self.rows, self.names = today


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value.isoformat() if isinstance(value, dt.date) else value


def key_of(row: Row, on: list[str]) -> Any:
    values = tuple(plain(row[key]) for key in on)
    return None if None in values else values


def test_rows_are_those_of_the_model(catalog: Catalog, lane_count: Callable[[int, int], int]) -> None:
    catalog.create_namespace("m")
    for seed in range(lane_count(2, 300)):
        model = Model(catalog, f"m.t{seed}", random.Random(seed))
        try:
            for _ in range(15):
                model.step()
                model.check()
            model.check_past()
        except Exception as error:
            error.add_note(f"seed {seed}, {model.shape}:\n" + "\n".join(model.log))
            raise
    assert not catalog.admin.check().findings
