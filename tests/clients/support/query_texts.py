"""Questions in SQL that Spark and DuckDB both understand.

They have the shapes of TPC-H's 22 with parameters for little data, and some are over the flights from New York. Columns
that a history renames are in braces, by their first name. Every order is total.
"""

from __future__ import annotations

TPCH = {
    "q01": """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS quantity, sum(l_extendedprice) AS price,
            sum(l_extendedprice * (1 - l_discount)) AS discounted,
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS charge,
            avg(l_quantity) AS average, avg(l_discount) AS discount, count(*) AS n, count(l_receiptdate) AS received
        FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus""",
    "q02": """
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone
        FROM part JOIN partsupp ON p_partkey = ps_partkey JOIN supplier ON s_suppkey = ps_suppkey
            JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
        WHERE p_size <= 25 AND p_type LIKE '%BRASS' AND r_name IN ('EUROPE', 'ASIA')
            AND ps_supplycost = (
                SELECT min(ps_supplycost)
                FROM partsupp JOIN supplier ON s_suppkey = ps_suppkey JOIN nation ON s_nationkey = n_nationkey
                    JOIN region ON n_regionkey = r_regionkey
                WHERE p_partkey = ps_partkey AND r_name IN ('EUROPE', 'ASIA'))
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    "q03": """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
        WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-02-01'
        GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "q04": """
        SELECT o_orderpriority, count(*) AS n FROM orders
        WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1994-07-01'
            AND EXISTS (SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    "q05": """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
            JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
            JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
        WHERE r_name <> 'AFRICA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1997-01-01'
        GROUP BY n_name ORDER BY revenue DESC, n_name""",
    "q06": """
        SELECT sum(l_extendedprice * l_discount) AS revenue, count(*) AS n FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
            AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "q07": """
        SELECT supp, cust, year, sum(volume) AS revenue FROM (
            SELECT a.n_name AS supp, b.n_name AS cust, extract(YEAR FROM l_shipdate) AS year,
                l_extendedprice * (1 - l_discount) AS volume
            FROM supplier JOIN lineitem ON s_suppkey = l_suppkey JOIN orders ON o_orderkey = l_orderkey
                JOIN customer ON c_custkey = o_custkey JOIN nation a ON s_nationkey = a.n_nationkey
                JOIN nation b ON c_nationkey = b.n_nationkey
            WHERE a.n_regionkey = 3 AND b.n_regionkey = 1 OR a.n_regionkey = 1 AND b.n_regionkey = 3) shipping
        GROUP BY supp, cust, year""",
    "q08": """
        SELECT year, sum(CASE WHEN regionkey = 1 THEN volume ELSE 0 END) / sum(volume) AS share FROM (
            SELECT extract(YEAR FROM o_orderdate) AS year, l_extendedprice * (1 - l_discount) AS volume,
                n_regionkey AS regionkey
            FROM part JOIN lineitem ON p_partkey = l_partkey JOIN supplier ON s_suppkey = l_suppkey
                JOIN orders ON l_orderkey = o_orderkey JOIN nation ON s_nationkey = n_nationkey
            WHERE p_type LIKE 'ECONOMY%' AND o_orderdate BETWEEN DATE '1993-01-01' AND DATE '1997-12-31') parts
        GROUP BY year""",
    "q09": """
        SELECT n_name, extract(YEAR FROM o_orderdate) AS year,
            sum(l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity) AS profit
        FROM part JOIN lineitem ON p_partkey = l_partkey JOIN supplier ON s_suppkey = l_suppkey
            JOIN partsupp ON ps_suppkey = l_suppkey AND ps_partkey = l_partkey
            JOIN orders ON o_orderkey = l_orderkey JOIN nation ON s_nationkey = n_nationkey
        WHERE p_name LIKE '%green%' GROUP BY n_name, extract(YEAR FROM o_orderdate)""",
    "q10": """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, {c_phone},
            c_comment
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
            LEFT JOIN nation ON c_nationkey = n_nationkey
        WHERE o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-10-01' AND l_returnflag = 'R'
        GROUP BY c_custkey, c_name, c_acctbal, {c_phone}, n_name, c_comment
        ORDER BY revenue DESC, c_custkey LIMIT 20""",
    "q11": """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value, max(ps_rating) AS rating
        FROM partsupp JOIN supplier ON ps_suppkey = s_suppkey JOIN nation ON s_nationkey = n_nationkey
        WHERE n_regionkey = 3 GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (
            SELECT 1.5 * CAST(sum(ps_supplycost * ps_availqty) AS DOUBLE) / count(DISTINCT ps_partkey)
            FROM partsupp JOIN supplier ON ps_suppkey = s_suppkey JOIN nation ON s_nationkey = n_nationkey
            WHERE n_regionkey = 3)""",
    "q12": """
        SELECT l_shipmode,
            sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high,
            sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low
        FROM orders JOIN lineitem ON o_orderkey = l_orderkey
        WHERE l_shipmode IN ('MAIL', 'SHIP', 'FOB') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
            AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1996-01-01'
        GROUP BY l_shipmode ORDER BY l_shipmode""",
    "q13": """
        SELECT orders_made, count(*) AS customers FROM (
            SELECT c_custkey, count(o_orderkey) AS orders_made
            FROM customer LEFT JOIN orders ON c_custkey = o_custkey AND o_orderpriority NOT LIKE '%LOW%'
            GROUP BY c_custkey) made
        GROUP BY orders_made""",
    "q14": """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
            / sum(l_extendedprice * (1 - l_discount)) AS promo
        FROM lineitem JOIN part ON l_partkey = p_partkey
        WHERE l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1996-03-01'""",
    "q15": """
        WITH revenue AS (
            SELECT l_suppkey AS suppkey, sum(l_extendedprice * (1 - l_discount)) AS total FROM lineitem
            WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01' GROUP BY l_suppkey)
        SELECT s_suppkey, s_name, s_address, s_phone, total FROM supplier JOIN revenue ON s_suppkey = suppkey
        WHERE total = (SELECT max(total) FROM revenue WHERE suppkey IN (SELECT s_suppkey FROM supplier))""",
    "q16": """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS suppliers
        FROM partsupp JOIN part ON p_partkey = ps_partkey
        WHERE p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%' AND p_size IN (3, 9, 14, 19, 23, 36, 45, 49)
            AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY p_brand, p_type, p_size""",
    "q17": """
        SELECT sum(l_extendedprice) / 7.0 AS yearly, count(*) AS n FROM lineitem JOIN part ON p_partkey = l_partkey
        WHERE p_container LIKE 'MED%'
            AND l_quantity < (SELECT 0.4 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)""",
    "q18": """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON o_orderkey = l_orderkey
        WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 200)
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    "q19": """
        SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue, count(*) AS n
        FROM lineitem JOIN part ON p_partkey = l_partkey
        WHERE l_shipmode IN ('AIR', 'REG AIR') AND (
            p_brand LIKE 'Brand#1%' AND p_container LIKE 'SM%' AND l_quantity BETWEEN 1 AND 21 AND p_size <= 15
            OR p_brand LIKE 'Brand#2%' AND p_container LIKE 'MED%' AND l_quantity BETWEEN 10 AND 30 AND p_size > 10
            OR p_brand LIKE 'Brand#3%' AND l_shipinstruct = 'DELIVER IN PERSON' AND p_size IS NOT NULL)""",
    "q20": """
        SELECT s_name, s_address FROM supplier JOIN nation ON s_nationkey = n_nationkey
        WHERE n_regionkey IN (1, 2) AND s_suppkey IN (
            SELECT ps_suppkey FROM partsupp
            WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')
                AND ps_availqty > (
                    SELECT 0.5 * sum(l_quantity) FROM lineitem
                    WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01'))""",
    "q21": """
        SELECT s_name, count(*) AS waiting
        FROM supplier JOIN lineitem a ON s_suppkey = a.l_suppkey JOIN orders ON o_orderkey = a.l_orderkey
        WHERE o_orderstatus = 'F' AND a.l_receiptdate > a.l_commitdate
            AND EXISTS (
                SELECT 1 FROM lineitem b WHERE b.l_orderkey = a.l_orderkey AND b.l_suppkey <> a.l_suppkey)
            AND NOT EXISTS (
                SELECT 1 FROM lineitem c WHERE c.l_orderkey = a.l_orderkey AND c.l_suppkey <> a.l_suppkey
                    AND c.l_receiptdate > c.l_commitdate)
        GROUP BY s_name ORDER BY waiting DESC, s_name""",
    "q22": """
        SELECT code, count(*) AS n, sum(c_acctbal) AS balance FROM (
            SELECT substring({c_phone}, 1, 1) AS code, c_acctbal FROM customer
            WHERE c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00)
                AND NOT EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey)) idle
        GROUP BY code""",
    "nulls": """
        SELECT c_mktsegment, count(*) AS n, count(c_nationkey) AS somewhere, count({c_phone}) AS with_phone,
            count(DISTINCT coalesce(o.{o_clerk}, 'nobody')) AS clerks, count(o.{o_clerk}) AS named,
            min(o_placed_at) AS earliest, max(n_comment) AS comment, avg(o_totalprice) AS average
        FROM customer LEFT JOIN orders o ON o_custkey = c_custkey AND o_orderdate < DATE '1996-06-01'
            LEFT JOIN nation ON n_nationkey IS NOT DISTINCT FROM c_nationkey
        GROUP BY c_mktsegment""",
    "texts": """
        SELECT {l_comment} AS remark, count(*) AS n, min(l_linenumber) AS line FROM lineitem
        WHERE {l_comment} LIKE '%Stra%' OR {l_comment} LIKE '50|%%' ESCAPE '|' OR {l_comment} IS NULL
        GROUP BY {l_comment} HAVING count(*) > 1""",
    "weights": """
        SELECT p_brand, count(p_weight) AS n, sum(p_weight) AS total, max(p_weight) AS most, avg(p_size) AS size,
            sum(p_retailprice) AS price
        FROM part WHERE p_weight IS NULL OR p_weight > 1.5 GROUP BY p_brand""",
}

FLIGHTS = {
    "carriers": """
        SELECT f.carrier, name, count(*) AS flights, count(DISTINCT {tailnum}) AS planes, avg(dep_delay) AS late,
            max(arr_delay) AS latest, sum(distance) AS miles
        FROM flights f LEFT JOIN airlines a ON f.carrier = a.carrier GROUP BY f.carrier, name""",
    "worst": """
        SELECT * FROM (
            SELECT origin, month, day, carrier, flight, dep_delay, row_number() OVER (
                PARTITION BY origin, month, day ORDER BY dep_delay DESC, carrier, flight, sched_dep_time) AS place
            FROM flights WHERE dep_delay IS NOT NULL) ranked
        WHERE place <= 2""",
    "hops": """
        SELECT origin, count(*) AS hops, count(before) AS known,
            sum(CASE WHEN before = origin THEN 1 ELSE 0 END) AS same_place
        FROM (
            SELECT origin, lag(origin) OVER (
                PARTITION BY {tailnum} ORDER BY time_hour, sched_dep_time, carrier, flight) AS before
            FROM flights WHERE {tailnum} IS NOT NULL) seen
        GROUP BY origin""",
    "running": """
        SELECT carrier, month, day, miles, sum(miles) OVER (
            PARTITION BY carrier ORDER BY month, day ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS of_three_days
        FROM (SELECT carrier, month, day, sum(distance) AS miles FROM flights GROUP BY carrier, month, day) daily""",
    "ranks": """
        SELECT month, dest, flights, rank() OVER (PARTITION BY month ORDER BY flights DESC) AS place,
            dense_rank() OVER (PARTITION BY month ORDER BY flights DESC) AS step
        FROM (SELECT month, dest, count(*) AS flights FROM flights GROUP BY month, dest) counted
        WHERE flights > 20""",
    "weather": """
        SELECT f.origin, CASE WHEN precip > 0 THEN 'wet' WHEN precip = 0 THEN 'dry' ELSE 'unknown' END AS sky,
            count(*) AS flights, count(w.temp) AS measured, avg(dep_delay) AS late, min(w.visib) AS seen
        FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        GROUP BY f.origin, CASE WHEN precip > 0 THEN 'wet' WHEN precip = 0 THEN 'dry' ELSE 'unknown' END""",
    "ages": """
        SELECT coalesce(manufacturer, 'unknown') AS maker, count(*) AS flights, sum(seats) AS seats,
            avg(f.year - p.year) AS age
        FROM flights f LEFT JOIN planes p ON f.{tailnum} = p.tailnum
        GROUP BY coalesce(manufacturer, 'unknown') HAVING count(*) > 5""",
    "cancelled": """
        SELECT origin, carrier, count(*) AS flights, count(*) - count(dep_time) AS cancelled FROM flights
        GROUP BY ROLLUP (origin, carrier)""",
    "nowhere": """
        SELECT dest, count(*) AS flights FROM flights f
        WHERE NOT EXISTS (SELECT 1 FROM airports WHERE faa = f.dest) GROUP BY dest""",
    "hours": """
        SELECT time_hour, count(*) AS flights, avg(air_time) AS minutes FROM flights
        WHERE time_hour >= TIMESTAMP '2013-01-02 12:00:00+00:00' AND time_hour < TIMESTAMP '2013-02-02 12:00:00+00:00'
        GROUP BY time_hour HAVING count(*) >= 20""",
}
