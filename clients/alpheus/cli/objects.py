"""Commands on namespaces, tables and views.

The module stays above 600 lines because the commands of the three kinds mirror each other and share options: a change
to one of them usually changes its siblings.
"""

from __future__ import annotations

from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from alpheus.cli.frame import (
    PAIR,
    ColumnType,
    F,
    Settings,
    as_option,
    at_option,
    check_changes,
    cli,
    exist_ok_option,
    mapping,
    message_option,
    pass_settings,
    print_names,
    property_option,
    unset_option,
    when_option,
    write,
)
from alpheus.cli.text import document, output
from alpheus.cli.text.column_types import parse_type
from alpheus.errors import InvalidInput
from alpheus.importing.results import Format
from alpheus.transactions.column_arguments import parse_added_columns
from alpheus_journal.tables.columns import columns_of_schema

# --- namespaces ------------------------------------------------------------------------------------


@cli.group()
def namespace() -> None:
    """List, show and change namespaces.

    \b
    Examples
      alpheus namespace create sales --property owner=ann
      alpheus namespace set sales owner=bob --unset draft
    """


@namespace.command("list")
@click.option("--prefix", default="", help="Only names that begin with this text.")
@at_option
@pass_settings
def namespace_list(settings: Settings, prefix: str, at: str | None) -> None:
    """List the namespaces, one name per line."""
    with settings.reader(at) as reader:
        found = reader.list_namespaces(prefix)
    print_names(settings, found, [name.name for name in found], "no namespaces")


@namespace.command("show")
@click.argument("name")
@at_option
@pass_settings
def namespace_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the properties of a namespace."""
    with settings.reader(at) as reader:
        found = reader.load_namespace(name)
    text = output.fields_text(
        [
            ("namespace", found.name),
            ("id", found.id),
            ("data root", found.data_root),
            ("at version", found.version),
        ]
    )
    if found.properties:
        text += "\nproperties" + output.properties_text(found.properties)
    settings.out.document(found, text)


@namespace.command("create")
@click.argument("name")
@property_option
@click.option(
    "--data-root", metavar="URL", help="Where the data files of its tables will lie, apart from the catalog."
)
@exist_ok_option
@message_option
@pass_settings
def namespace_create(
    settings: Settings,
    name: str,
    properties: tuple[tuple[str, str], ...],
    data_root: str | None,
    exist_ok: bool,
    message: str,
) -> None:
    """Create a namespace.

    \b
    Example
      alpheus namespace create sales --data-root s3://sales-team/data
    """
    given = mapping(properties)
    write(
        settings,
        message,
        f"created namespace {name}",
        lambda to: to.create_namespace(name, given, data_root, exist_ok=exist_ok),
    )


@namespace.command("set")
@click.argument("name")
@click.argument("pairs", type=PAIR, nargs=-1, metavar="[K=V]...")
@unset_option
@message_option
@pass_settings
def namespace_set(
    settings: Settings, name: str, pairs: tuple[tuple[str, str], ...], unset: tuple[str, ...], message: str
) -> None:
    """Set and remove properties of a namespace."""
    values, keys = check_changes(pairs, unset)
    write(settings, message, f"updated namespace {name}", lambda to: to.update_namespace(name, values, keys))


@namespace.command("drop")
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Also drop every table and view in it, in one transaction.")
@message_option
@pass_settings
def namespace_drop(settings: Settings, name: str, cascade: bool, message: str) -> None:
    """Drop a namespace. It must be empty unless --cascade is given. "undrop" brings it back with its contents."""
    write(
        settings,
        message,
        f"dropped namespace {name}",
        lambda to: to.drop_namespace(name, cascade=cascade),
    )


@namespace.command("undrop")
@click.argument("name")
@when_option
@as_option
@message_option
@pass_settings
def namespace_undrop(
    settings: Settings, name: str, at: str | None, as_name: str | None, message: str
) -> None:
    """Bring back a dropped namespace with its contents.

    The contents are as they were when the namespace was dropped, or as at --at.
    """
    new = (as_name or name,)
    write(
        settings,
        message,
        f"brought back namespace {new[0]}",
        lambda to: to.undrop((name,), at, new, "namespace"),
    )


# --- tables ----------------------------------------------------------------------------------------


default_option = click.option(
    "--default", "defaults", type=PAIR, multiple=True, metavar="PATH=VALUE",
    help="The value for inserts that omit a column; bytes in base64. Rows older than an added column have it, too.",
)  # fmt: skip


@cli.group()
def table() -> None:
    """List, show and change tables. A table is named NAMESPACE.NAME.

    \b
    Examples
      alpheus table create sales.orders --column id:int64:required --column at:timestamptz
      alpheus table create sales.lines --like lines.parquet
      alpheus table show sales.orders --at 12
    """


@table.command("list")
@click.argument("namespace", required=False)
@click.option("--prefix", default="", help="Only names (without the namespace) that begin with this text.")
@click.option(
    "--long", "-l", "long_", is_flag=True, help="Also show format, rows, files and size of each table."
)
@at_option
@pass_settings
def table_list(settings: Settings, namespace: str | None, prefix: str, long_: bool, at: str | None) -> None:
    """List the tables of NAMESPACE, or of all namespaces."""
    with settings.reader(at) as reader:
        found = reader.list_tables(namespace, prefix)
        tables = reader.load_tables([(name.namespace, name.name) for name in found]) if long_ else []
    if not long_:
        print_names(settings, found, [name.full_name for name in found], "no tables")
        return
    settings.out.document(
        [output.table_plain(each) for each in tables],
        output.columns_text(
            ["NAME", "FORMAT", "ROWS", "FILES", "SIZE"],
            [
                (t.full_name, t.format, output.rows_text(t), t.file_count, output.size_text(t.size_bytes))
                for t in tables
            ],
        ),
    )
    if not tables:
        settings.out.note("no tables")


@table.command("show")
@click.argument("name")
@at_option
@pass_settings
def table_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the schema, properties, rows and files of a table."""
    with settings.reader(at) as reader:
        found = reader.load_table(name)
    settings.out.document(output.table_plain(found), output.table_text(found))


@table.command("create")
@click.argument("name")
@click.option(
    "--column", "columns", type=ColumnType(), multiple=True, metavar="NAME:TYPE[:required]",
    help="A column. Repeatable, in the order of the columns.",
)  # fmt: skip
@click.option("--like", type=click.Path(exists=True, dir_okay=False), metavar="FILE.parquet",
              help="Use the columns of a Parquet file. Its rows are not read.")  # fmt: skip
@click.option(
    "--partition-by",
    multiple=True,
    metavar="COLUMN",
    help="A partition key: COLUMN, or day(COLUMN), month(COLUMN), year(COLUMN) of a date or time. Repeatable.",
)
@click.option(
    "--sort-by",
    multiple=True,
    metavar="COLUMN [desc]",
    help='A sort key of the rows in files, such as "at desc nulls first". Repeatable.',
)
@default_option
@property_option
@exist_ok_option
@message_option
@pass_settings
def table_create(
    settings: Settings, name: str, columns: tuple[pa.Field, ...], like: str | None, partition_by: tuple[str, ...],
    sort_by: tuple[str, ...], defaults: tuple[tuple[str, str], ...], properties: tuple[tuple[str, str], ...],
    exist_ok: bool, message: str,
) -> None:  # fmt: skip
    """Create an empty table.

    \b
    Types
      boolean, int16, int32, int64, float, double, string, binary, date
      timestamp            date and time without a zone
      timestamptz          an instant
      decimal(P,S)         P digits, S of them after the point
      fixed(N)             N bytes
      list<T>, map<K,V>, struct<NAME:T,...>
    Put names with special characters in backquotes. T:required forbids NULL.

    \b
    Examples
      alpheus table create sales.orders --column id:int64:required --column "price:decimal(10,2)"
      alpheus table create sales.events --column "tags:map<string,list<string>>"
      alpheus table create sales.lines --like lines.parquet --property owner=ann
      alpheus table create sales.events --column at:timestamptz --column kind:string \\
        --partition-by "day(at)" --sort-by kind --sort-by "at desc" --default kind=view
    """
    if bool(columns) == bool(like):
        raise click.UsageError("Give either --column (repeated) or --like FILE.parquet.")
    schema = _read_parquet_schema(like) if like else pa.schema(columns)
    given = mapping(properties)
    known = columns_of_schema(schema)
    values = {
        path: document.default_of_text(text, path, known, (), name)
        for path, text in mapping(defaults).items()
    }
    write(
        settings,
        message,
        f"created table {name}",
        lambda to: to.create_table(name, schema, given, partition_by, sort_by, exist_ok, values),
    )


def _read_parquet_schema(path: str) -> pa.Schema:
    try:
        schema: pa.Schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path} is not a Parquet file: {error}", kind="bad_data") from None
    return schema.remove_metadata()


@table.command("import")
@click.argument("name")
@click.argument("path")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="The format of the data at PATH.",
)
@click.option(
    "--version",
    metavar="V",
    help="The version of a Delta table, or the snapshot, branch or tag of an Iceberg table.",
)
@click.option(
    "--partition-by",
    multiple=True,
    metavar="COLUMN",
    help="A partition key, as in create (default: the partitions at PATH). Repeatable.",
)
@click.option(
    "--sort-by", multiple=True, metavar="COLUMN [desc]", help="A sort key, as in create. Repeatable."
)
@click.option("--unpartitioned", is_flag=True, help="Create the table without the partitions at PATH.")
@click.option("--append", is_flag=True, help="Add the rows to an existing table.")
@click.option(
    "--partition-type",
    "partition_types",
    type=ColumnType(),
    multiple=True,
    metavar="KEY:TYPE",
    help="The type of a key of partition folders (key=value/). Repeatable.",
)
@click.option(
    "--key", metavar="TEXT", help="Import only once under this key, however often the command runs."
)
@click.option("--resume", metavar="ID", help="Resume an interrupted import.")
@message_option
@pass_settings
def table_import(
    settings: Settings, name: str, path: str, format_: Format, version: str | None, partition_by: tuple[str, ...],
    sort_by: tuple[str, ...], unpartitioned: bool, append: bool, partition_types: tuple[pa.Field, ...],
    key: str | None, resume: str | None, message: str,
) -> None:  # fmt: skip
    """Import Parquet files, a Delta or an Iceberg table.

    The rows are copied into a new table in one commit.

    PATH is a folder, a file, a pattern (in quotes), or a URL such as s3://bucket/path. The command prints an id. If it
    is interrupted, run it again with --resume and this id: it copies what is left, provided the source is unchanged.

    \b
    Examples
      alpheus table import sales.orders /data/orders
      alpheus table import sales.events "/data/events/year=202?/" --partition-by "day(at)" --sort-by kind
      alpheus table import sales.lines s3://bucket/lines --format delta --version 12
      alpheus table import sales.clicks /warehouse/clicks --format iceberg --key import/clicks
    """
    if unpartitioned and partition_by:
        raise click.UsageError("Give either --partition-by or --unpartitioned.")
    by = list(partition_by) if partition_by or unpartitioned else None
    with settings.catalog() as catalog, output.show_progress() as show:

        def begin(id: str) -> None:
            settings.out.note(f"import {id} began; to resume it after an interruption, add --resume {id}")

        done = catalog.import_table(
            name, path, format_, version, by, list(sort_by) or None, append,
            {field.name: field.type for field in partition_types}, message, None, key, resume, begin,
            lambda at: show(output.import_text(at)),
        )  # fmt: skip
    size = output.size_text(done.source_size_bytes)
    if done.duplicate:
        text = f"{name} was already imported in version {done.version}"
    elif not done.transaction_id:
        text = f"unchanged at version {done.version}: no rows"
    else:
        text = f"imported {done.rows} rows from {done.source_files} files ({size}) in version {done.version}"
    settings.out.document(done, text)


@table.command("register")
@click.argument("name")
@click.argument("metadata_location")
@property_option
@message_option
@pass_settings
def table_register(
    settings: Settings,
    name: str,
    metadata_location: str,
    properties: tuple[tuple[str, str], ...],
    message: str,
) -> None:
    """Register an Iceberg table by its newest metadata file.

    \b
    Example
      alpheus table register sales.clicks s3://bucket/clicks/metadata/00007-3f2a.metadata.json
    """
    given = mapping(properties)
    write(
        settings,
        message,
        f"registered table {name}",
        lambda to: to.register_table(name, metadata_location, given),
    )


@table.command("commit-iceberg")
@click.argument("name")
@click.argument("metadata_location")
@click.option(
    "--expected",
    required=True,
    metavar="LOCATION",
    help="The present metadata file; a conflict if it is another one.",
)
@message_option
@pass_settings
def table_commit_iceberg(
    settings: Settings, name: str, metadata_location: str, expected: str, message: str
) -> None:
    """Move a registered Iceberg table to another metadata file."""
    write(
        settings,
        message,
        f"moved table {name} to {metadata_location}",
        lambda to: to.commit_iceberg(name, metadata_location, expected),
    )


class TypedPath(click.ParamType[tuple[str, str]]):
    """`path:type`."""

    name = "path:type"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        path, colon, text = str(value).partition(":")
        if not colon or not path:
            self.fail(f"{value!r} is not PATH:TYPE.", param, ctx)
        return path, text


@table.command("set")
@click.argument("name")
@click.argument("pairs", type=PAIR, nargs=-1, metavar="[K=V]...")
@unset_option
@click.option(
    "--add-column", "add_columns", type=ColumnType(), multiple=True, metavar="NAME:TYPE", help="Add a column."
)
@click.option("--drop-column", "drop_columns", multiple=True, metavar="PATH", help="Drop a column.")
@click.option(
    "--rename-column",
    "rename_columns",
    type=PAIR,
    multiple=True,
    metavar="PATH=NAME",
    help="Rename a column.",
)
@click.option(
    "--retype-column", "retype_columns", type=TypedPath(), multiple=True, metavar="PATH:TYPE",
    help="Give a column a wider type.",
)  # fmt: skip
@click.option("--nullable", multiple=True, metavar="PATH", help="Let a required column hold NULL.")
@click.option(
    "--required", multiple=True, metavar="PATH", help="Forbid NULL in a column, if the table has no rows."
)
@click.option(
    "--column-order",
    metavar="NAME,NAME,...",
    help="The new order of the columns: every top-level column.",
)
@default_option
@click.option("--no-default", "no_defaults", multiple=True, metavar="PATH", help="Remove a column's default.")
@message_option
@pass_settings
def table_set(
    settings: Settings, name: str, pairs: tuple[tuple[str, str], ...], unset: tuple[str, ...],
    add_columns: tuple[pa.Field, ...], drop_columns: tuple[str, ...], rename_columns: tuple[tuple[str, str], ...],
    retype_columns: tuple[tuple[str, str], ...], nullable: tuple[str, ...], required: tuple[str, ...],
    column_order: str | None, defaults: tuple[tuple[str, str], ...], no_defaults: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    """Change properties and columns of a table in one step.

    Name a field of a struct by its path, such as address.zip. Types can only widen: int16 to int32 to int64, float
    to double, a decimal to more digits. Existing files are not rewritten; their rows are read with the new columns.
    In a column that is added with a default, existing rows have that default.

    \b
    Examples
      alpheus table set sales.orders owner=ann --unset draft
      alpheus table set sales.orders --add-column note:string --rename-column qty=quantity
      alpheus table set sales.orders --retype-column quantity:int64 --drop-column old_id
      alpheus table set sales.orders --add-column state:string:required --default state=new
    """
    shape: dict[str, Any] = {
        "add_columns": list(add_columns) or None,
        "drop_columns": list(drop_columns),
        "rename_columns": mapping(rename_columns),
        "retype_columns": {path: _parse_column_type(text) for path, text in mapping(retype_columns).items()},
        "nullable_columns": dict.fromkeys(nullable, True) | dict.fromkeys(required, False),
        "column_order": column_order.split(",") if column_order else [],
    }
    if set(nullable) & set(required):
        raise click.UsageError(f"{min(set(nullable) & set(required))!r} is both nullable and required.")
    texts = mapping(defaults)
    for path in no_defaults:
        if path in texts:
            raise click.UsageError(f"{path!r} is in both --default and --no-default.")
    values, keys = check_changes(pairs, unset, or_else=any(shape.values()) or bool(texts or no_defaults))

    def update(to: Any) -> Any:
        given: dict[str, Any] = dict.fromkeys(no_defaults)
        if texts:
            known, new = to.load_table(name).columns, parse_added_columns(shape["add_columns"])
            for path, text in texts.items():
                given[path] = document.default_of_text(text, path, known, new, name)
        return to.update_table(name, values, keys, **shape, defaults=given)

    write(settings, message, f"updated table {name}", update)


def _parse_column_type(text: str) -> pa.DataType:
    try:
        return parse_type(text)
    except InvalidInput as error:
        raise click.UsageError(f"{error.message}\n{error.hint}".strip()) from None


@table.command("rename")
@click.argument("name")
@click.argument("new_name")
@message_option
@pass_settings
def table_rename(settings: Settings, name: str, new_name: str, message: str) -> None:
    """Rename a table.

    The new name may be in another namespace. The table keeps its id.
    """
    write(
        settings, message, f"renamed table {name} to {new_name}", lambda to: to.rename_table(name, new_name)
    )


@table.command("restore")
@click.argument("name")
@click.option("--at", required=True, metavar="WHEN", help="A version, a tag, or a time with a zone.")
@message_option
@pass_settings
def table_restore(settings: Settings, name: str, at: str, message: str) -> None:
    """Restore an older state of a table.

    The table gets the columns, rows and properties of that version. No data is copied.
    """
    write(settings, message, f"restored table {name}", lambda to: to.restore_table(name, at))


@table.command("undrop")
@click.argument("name")
@when_option
@as_option
@message_option
@pass_settings
def table_undrop(settings: Settings, name: str, at: str | None, as_name: str | None, message: str) -> None:
    """Bring back a dropped table.

    The table is as it was when it was dropped, or as at --at.
    """
    new = as_name or name
    write(settings, message, f"brought back {new}", lambda to: to.undrop(name, at, new, "table"))


@table.command("drop")
@click.argument("name")
@click.option("--purge", is_flag=True, help="Allow its data to be deleted, so that it cannot be restored.")
@message_option
@pass_settings
def table_drop(settings: Settings, name: str, purge: bool, message: str) -> None:
    """Drop a table. Older versions of the catalog still contain it."""
    write(settings, message, f"dropped table {name}", lambda to: to.drop_table(name, purge=purge))


# --- views -----------------------------------------------------------------------------------------


@cli.group()
def view() -> None:
    """List, show and change views. A view is named NAMESPACE.NAME. The catalog stores its SQL without parsing it.

    \b
    Examples
      alpheus view create sales.big --sql "SELECT * FROM sales.orders WHERE amount > 1000" --reference sales.orders
      alpheus view create sales.daily --sql @daily.sql --bind --reference sales.orders
    """


@view.command("list")
@click.argument("namespace", required=False)
@click.option("--prefix", default="", help="Only names (without the namespace) that begin with this text.")
@at_option
@pass_settings
def view_list(settings: Settings, namespace: str | None, prefix: str, at: str | None) -> None:
    """List the views of NAMESPACE, or of all namespaces."""
    with settings.reader(at) as reader:
        found = reader.list_views(namespace, prefix)
    print_names(settings, found, [name.full_name for name in found], "no views")


@view.command("show")
@click.argument("name")
@at_option
@pass_settings
def view_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the SQL of a view, and the objects it refers to."""
    with settings.reader(at) as reader:
        found = reader.load_view(name)
    settings.out.document(output.view_plain(found), output.view_text(found))


def _definition_options(command: F) -> F:
    options = [
        click.option("--sql", required=True, metavar="TEXT|@FILE", help="The SQL text, or @ and a file name."),
        click.option("--dialect", default="spark", show_default=True, help="The SQL dialect."),
        click.option(
            "--reference", "references", multiple=True, metavar="NAME", help="A table or view in the SQL. Repeatable."
        ),
        click.option(
            "--bind", is_flag=True,
            help="Forbid dropping or renaming the referenced objects, and dropping or changing their columns.",
        ),
        click.option(
            "--column", "columns", type=ColumnType(), multiple=True, metavar="NAME:TYPE[:required]",
            help="A column of the result. Repeatable, in the order of the columns.",
        ),
        click.option("--default-namespace", metavar="NS", help="The namespace of unqualified names in the SQL."),
        property_option,
        message_option,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _view_arguments(
    sql: str, dialect: str, references: tuple[str, ...], bind: bool, columns: tuple[pa.Field, ...],
    default_namespace: str | None, properties: tuple[tuple[str, str], ...],
) -> dict[str, Any]:  # fmt: skip
    if sql.startswith("@"):
        try:
            with open(sql[1:], encoding="utf-8") as file:
                sql = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{sql[1:]!r} cannot be read: {error}", kind="bad_data") from None
    return {
        "sql": sql,
        "dialect": dialect,
        "references": list(references),
        "schema_binding": bind,
        "schema": pa.schema(columns) if columns else None,
        "default_namespace": default_namespace,
        "properties": mapping(properties),
    }


@view.command("create")
@click.argument("name")
@_definition_options
@pass_settings
def view_create(settings: Settings, /, name: str, message: str, **given: Any) -> None:
    """Create a view."""
    arguments = _view_arguments(**given)
    write(settings, message, f"created view {name}", lambda to: to.create_view(name, **arguments))


@view.command("replace")
@click.argument("name")
@_definition_options
@pass_settings
def view_replace(settings: Settings, /, name: str, message: str, **given: Any) -> None:
    """Replace the definition of a view. The view keeps its id; everything that is not given is removed."""
    arguments = _view_arguments(**given)
    write(settings, message, f"replaced view {name}", lambda to: to.replace_view(name, **arguments))


@view.command("rename")
@click.argument("name")
@click.argument("new_name")
@message_option
@pass_settings
def view_rename(settings: Settings, name: str, new_name: str, message: str) -> None:
    """Rename a view. The new name may be in another namespace."""
    write(settings, message, f"renamed view {name} to {new_name}", lambda to: to.rename_view(name, new_name))


@view.command("undrop")
@click.argument("name")
@when_option
@as_option
@message_option
@pass_settings
def view_undrop(settings: Settings, name: str, at: str | None, as_name: str | None, message: str) -> None:
    """Bring back a dropped view.

    The view is as it was when it was dropped, or as at --at.
    """
    new = as_name or name
    write(settings, message, f"brought back {new}", lambda to: to.undrop(name, at, new, "view"))


@view.command("drop")
@click.argument("name")
@message_option
@pass_settings
def view_drop(settings: Settings, name: str, message: str) -> None:
    """Drop a view. Older versions of the catalog still contain it."""
    write(settings, message, f"dropped view {name}", lambda to: to.drop_view(name))
