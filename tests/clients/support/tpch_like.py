"""Tables in the shape of TPC-H's, made from a seed.

The keys and their spread, the types, and the dates that follow each other are those of TPC-H. The texts are our own,
some columns have NULLs, and a few columns are added for types that TPC-H lacks.

At scale 1 there would be 6 million rows of `lineitem`. Every table but `region` and `nation` shrinks with the scale.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0),
    ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2),
    ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
MODES = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")
INSTRUCTIONS = ("COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN")
CONTAINERS = [
    f"{size} {kind}"
    for size in ("JUMBO", "LG", "MED", "SM")
    for kind in ("BAG", "BOX", "CASE", "PACK", "PKG")
]
TYPES = [
    f"{first} {second} {third}"
    for first in ("ECONOMY", "LARGE", "MEDIUM", "PROMO", "SMALL", "STANDARD")
    for second in ("ANODIZED", "BRUSHED", "PLATED", "POLISHED")
    for third in ("BRASS", "COPPER", "STEEL", "TIN")
]
COLOURS = (
    "almond",
    "azure",
    "blue",
    "chocolate",
    "forest",
    "green",
    "ivory",
    "lemon",
    "navy",
    "red",
    "snow",
    "tan",
)
WORDS = (
    "special", "requests", "pending", "deposits", "Customer", "Complaints", "50%", "a_b", "it's", '"quoted"', "Straße",
    "日本", "é", "back\\slash", "", "final", "ironic",
)  # fmt: skip

FIRST_DAY, LAST_DAY = dt.date(1992, 1, 1), dt.date(1998, 8, 2)
TODAY = dt.date(1995, 6, 17)


def tables(scale: float, seed: int = 19) -> dict[str, pa.Table]:
    """Return the tables by name. The same scale and seed give the same rows."""
    return _Maker(scale, np.random.default_rng(seed)).all()


def decimals(unscaled: np.ndarray, precision: int, scale: int = 2) -> pa.Array:
    """Return whole numbers as decimals with `scale` digits after the point."""
    words = np.empty((len(unscaled), 2), np.int64)
    words[:, 0], words[:, 1] = unscaled, unscaled >> 63
    kind = pa.decimal128(precision, scale)
    return pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(words.tobytes())])


def _day(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days


class _Maker:
    def __init__(self, scale: float, random: np.random.Generator) -> None:
        self._random = random
        self._suppliers = max(20, round(10_000 * scale))
        self._parts = max(100, round(200_000 * scale))
        self._customers = max(90, round(150_000 * scale))
        self._orders = 10 * self._customers

    def all(self) -> dict[str, pa.Table]:
        orders, lineitem = self._orders_and_lines()
        return {
            "region": self._region(),
            "nation": self._nation(),
            "supplier": self._supplier(),
            "customer": self._customer(),
            "part": self._part(),
            "partsupp": self._partsupp(),
            "orders": orders,
            "lineitem": lineitem,
        }

    # -- columns

    def _numbers(self, low: int, high: int, count: int) -> np.ndarray:
        """Return random numbers from `low` to `high`, both included."""
        return self._random.integers(low, high, count, endpoint=True)

    def _of(self, values: Sequence[str], count: int) -> pa.Array:
        return pa.array(values, pa.string()).take(pa.array(self._numbers(0, len(values) - 1, count)))

    def _words(self, values: Sequence[str], words: int, count: int) -> pa.Array:
        return pc.binary_join_element_wise(*[self._of(values, count) for _ in range(words)], " ")

    def _missing(self, values: pa.Array, share: float) -> pa.Array:
        """Replace about this share of the values by NULL."""
        gone = pa.array(self._random.random(len(values)) < share)
        return pc.if_else(gone, pa.scalar(None, values.type), values)

    def _comment(self, count: int) -> pa.Array:
        return self._missing(self._words(WORDS, 4, count), 0.1)

    def _phone(self, nations: np.ndarray) -> pa.Array:
        local = self._numbers(1_000_000, 9_999_999, len(nations))
        return pa.array([f"{10 + nation}-{digits}" for nation, digits in zip(nations, local, strict=True)])

    def _balance(self, count: int) -> pa.Array:
        return decimals(self._numbers(-99_999, 999_999, count), 12)

    # -- tables

    def _region(self) -> pa.Table:
        keys = range(len(REGIONS))
        return pa.table(
            {
                "r_regionkey": pa.array(keys, pa.int32()),
                "r_name": pa.array(REGIONS),
                "r_comment": self._comment(len(REGIONS)),
            }
        )

    def _nation(self) -> pa.Table:
        return pa.table(
            {
                "n_nationkey": pa.array(range(len(NATIONS)), pa.int32()),
                "n_name": pa.array([name for name, _ in NATIONS]),
                "n_regionkey": pa.array([region for _, region in NATIONS], pa.int32()),
                "n_comment": self._comment(len(NATIONS)),
            }
        )

    def _supplier(self) -> pa.Table:
        count = self._suppliers
        nations = self._numbers(0, len(NATIONS) - 1, count)
        return pa.table(
            {
                "s_suppkey": pa.array(np.arange(1, count + 1)),
                "s_name": pa.array([f"Supplier#{key:09}" for key in range(1, count + 1)]),
                "s_address": self._words(WORDS, 2, count),
                "s_nationkey": pa.array(nations, pa.int32()),
                "s_phone": self._phone(nations),
                "s_acctbal": self._balance(count),
                "s_comment": self._comment(count),
            }
        )

    def _customer(self) -> pa.Table:
        count = self._customers
        nations = self._numbers(0, len(NATIONS) - 1, count)
        return pa.table(
            {
                "c_custkey": pa.array(np.arange(1, count + 1)),
                "c_name": pa.array([f"Customer#{key:09}" for key in range(1, count + 1)]),
                "c_address": self._words(WORDS, 2, count),
                "c_nationkey": self._missing(pa.array(nations, pa.int32()), 0.03),
                "c_phone": self._missing(self._phone(nations), 0.05),
                "c_acctbal": self._missing(self._balance(count), 0.05),
                "c_mktsegment": self._of(SEGMENTS, count),
                "c_comment": self._comment(count),
            }
        )

    def _part(self) -> pa.Table:
        count = self._parts
        makers, brands = self._numbers(1, 5, count), self._numbers(1, 5, count)
        keys = np.arange(1, count + 1)
        return pa.table(
            {
                "p_partkey": pa.array(keys),
                "p_name": self._words(COLOURS, 3, count),
                "p_mfgr": pa.array([f"Manufacturer#{maker}" for maker in makers]),
                "p_brand": pa.array(
                    [f"Brand#{maker}{brand}" for maker, brand in zip(makers, brands, strict=True)]
                ),
                "p_type": self._of(TYPES, count),
                "p_size": self._missing(pa.array(self._numbers(1, 50, count), pa.int32()), 0.02),
                "p_container": self._of(CONTAINERS, count),
                "p_retailprice": decimals(90_000 + keys // 10 % 20_001 + 100 * (keys % 1_000), 12),
                "p_weight": self._missing(pa.array(self._random.random(count) * 40, pa.float32()), 0.1),
                "p_comment": self._comment(count),
            }
        )

    def _partsupp(self) -> pa.Table:
        """Return four suppliers for each part, as `_orders_and_lines` expects."""
        parts = np.repeat(np.arange(1, self._parts + 1), 4)
        count = len(parts)
        rating = self._random.random(count)
        rating[self._random.random(count) < 0.01] = np.nan
        return pa.table(
            {
                "ps_partkey": pa.array(parts),
                "ps_suppkey": pa.array(self._supplier_of(parts, np.tile(np.arange(4), self._parts))),
                "ps_availqty": pa.array(self._numbers(1, 9_999, count), pa.int32()),
                "ps_supplycost": decimals(self._numbers(100, 100_000, count), 12),
                "ps_rating": self._missing(pa.array(rating), 0.05),
                "ps_comment": self._comment(count),
            }
        )

    def _supplier_of(self, parts: np.ndarray, which: np.ndarray) -> np.ndarray:
        return (parts + which * (self._suppliers // 4)) % self._suppliers + 1

    def _orders_and_lines(self) -> tuple[pa.Table, pa.Table]:
        count = self._orders
        keys = np.arange(count) // 8 * 32 + np.arange(count) % 8 + 1  # sparse, as in TPC-H
        customers = self._numbers(1, self._customers, count)
        customers -= (customers % 3 == 0).astype(np.int64)  # a third of the customers never orders
        days = self._numbers(_day(FIRST_DAY), _day(LAST_DAY), count)
        lines = self._numbers(1, 7, count)
        lineitem, totals, shipped = self._lines(keys, days, lines)
        states = np.where(shipped == lines, "F", np.where(shipped == 0, "O", "P"))
        moments = days * 86_400_000_000 + self._numbers(0, 86_399_999_999, count)
        orders = pa.table(
            {
                "o_orderkey": pa.array(keys),
                "o_custkey": pa.array(customers),
                "o_orderstatus": pa.array(states.tolist()),
                "o_totalprice": decimals(totals, 14),
                "o_orderdate": pa.array(days.astype(np.int32)).cast(pa.date32()),
                "o_orderpriority": self._of(PRIORITIES, count),
                "o_clerk": self._missing(
                    pa.array([f"Clerk#{clerk:05}" for clerk in self._numbers(1, 50, count)]), 0.1
                ),
                "o_shippriority": pa.array(self._numbers(0, 2, count), pa.int32()),
                "o_placed_at": pa.array(moments).cast(pa.timestamp("us", "UTC")),
                "o_comment": self._comment(count),
            }
        )
        return orders, lineitem

    def _lines(
        self, keys: np.ndarray, days: np.ndarray, lines: np.ndarray
    ) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """Return the lines of orders.

        For each order, also return its price in cents and its number of shipped lines.
        """
        order = np.repeat(np.arange(len(keys)), lines)
        count = len(order)
        parts = self._numbers(1, self._parts, count)
        quantity = self._numbers(1, 50, count)
        price = quantity * (90_000 + parts // 10 % 20_001 + 100 * (parts % 1_000))
        discount, tax = self._numbers(0, 10, count), self._numbers(0, 8, count)
        ship = days[order] + self._numbers(1, 121, count)
        receipt = ship + self._numbers(1, 30, count)
        is_shipped = ship <= _day(TODAY)
        table: dict[str, Any] = {
            "l_orderkey": pa.array(keys[order]),
            "l_partkey": pa.array(parts),
            "l_suppkey": pa.array(self._supplier_of(parts, self._numbers(0, 3, count))),
            "l_linenumber": pa.array(_counted(lines), pa.int32()),
            "l_quantity": decimals(quantity * 100, 12),
            "l_extendedprice": decimals(price, 14),
            "l_discount": decimals(discount, 4),
            "l_tax": decimals(tax, 4),
            "l_returnflag": pc.if_else(pa.array(receipt <= _day(TODAY)), self._of(("A", "R"), count), "N"),
            "l_linestatus": pa.array(np.where(is_shipped, "F", "O").tolist()),
            "l_shipdate": _dates(ship),
            "l_commitdate": _dates(days[order] + self._numbers(30, 90, count)),
            "l_receiptdate": pc.if_else(
                pa.array(receipt > _day(dt.date(1998, 9, 1))), pa.scalar(None, pa.date32()), _dates(receipt)
            ),
            "l_shipinstruct": self._of(INSTRUCTIONS, count),
            "l_shipmode": self._of(MODES, count),
            "l_comment": self._comment(count),
        }
        totals = np.zeros(len(keys), np.int64)
        np.add.at(totals, order, price * (100 - discount) * (100 + tax) // 10_000)
        shipped = np.zeros(len(keys), np.int64)
        np.add.at(shipped, order, is_shipped)
        return pa.table(table), totals, shipped


def _dates(days: np.ndarray) -> pa.Array:
    return pa.array(days.astype(np.int32)).cast(pa.date32())


def _counted(lines: np.ndarray) -> np.ndarray:
    """Return 1 to n for each n of `lines`."""
    ends = np.cumsum(lines)
    return np.arange(1, ends[-1] + 1) - np.repeat(ends - lines, lines)
