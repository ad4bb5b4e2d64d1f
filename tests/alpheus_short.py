"""The cases of parametrized tests that `make test` runs where other cases of the same test run the same code.

`make slow` runs all of them. Each value of a parameter that has code of its own stays in some case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

EVERY = {
    "tests/daemon/test_forged_checkpoints.py::test_a_start_from_a_forged_one": 3,
    "tests/daemon/test_forged_checkpoints.py::test_check_names_it": 3,
    "tests/faults/test_commit_faults.py::test_one_commit_whose_publish_fails": 4,
    "tests/faults/test_commit_faults.py::test_one_upload_fails": 3,
    "tests/faults/test_disk_errors.py::test_any_fault_of_any_call": 2,
    "tests/faults/test_s3_faults.py::test_a_root_that_lands_after_its_writer_gave_up": 2,
    "tests/faults/test_restores.py::test_a_store_put_back_under_writers": 3,
    "tests/journal/execute/test_counters.py::test_whatever_happens_to_a_table": 3,
    "tests/journal/tree/test_tree.py::test_thousands_of_operations": 3,
    "tests/journal/storage/test_delete_many.py::test_a_store_without_the_request_gets_one_for_each_file": 5,
    "tests/clients/rows/test_frames.py::test_whole_microseconds_go_in_by_every_verb": 2,
}
"""Tests of which a short run has each third case, say: the first, the fourth and so on."""

CASES: dict[str, tuple[str, ...]] = {
    "tests/clients/admin/test_expire_collect.py::test_a_collection_shows_itself": ("direct",),
    "tests/clients/admin/test_expire_collect.py::test_a_tag_keeps_its_version_and_is_named": ("direct",),
    "tests/clients/admin/test_expire_collect.py::test_the_newest_versions_and_young_versions_stay": (
        "direct",
    ),
    "tests/clients/admin/test_expire_collect.py::test_young_files_stay": ("direct",),
    "tests/clients/admin/test_expire_collect.py::test_wrong_rules_are_refused": (
        "direct",
        "remote-arguments0-older_than='7 days' is not a time span",
    ),
    "tests/clients/admin/test_tags.py::test_a_tag_reads_as_its_version_was": ("remote",),
    "tests/clients/admin/test_tags.py::test_an_expired_version_is_read_by_its_tag": ("direct",),
    "tests/clients/events/test_replica.py::test_threads_never_see_a_mix": ("direct",),
    "tests/clients/events/test_subscriptions.py::test_another_consumer_takes_over": ("storage-32", "daemon"),
    "tests/clients/events/test_subscriptions.py::test_consumers_that_die_and_stand_still": ("True",),
    "tests/clients/events/test_subscriptions.py::test_turns": ("storage-32", "daemon"),
    "tests/clients/importing/test_import_parquet.py::test_an_import_that_was_killed_goes_on_in_another_process": (
        "storage",
    ),
    "tests/clients/rows/test_ordered.py::test_rows_that_become_wider_along_a_file": ("sorted", "where"),
    "tests/clients/session/test_reader_leases.py::test_a_reader_without_a_lease_hears_that_its_version_has_expired": (
        "direct",
    ),
    "tests/clients/session/test_remote_faults.py::test_a_commit_whose_answer_is_lost_is_one_commit": (
        "[LoseReply(hang=False)]",
        "[CutBefore()]",
    ),
    "tests/clients/spark/test_spark_changes.py::test_a_key_of_each_type_matches_as_in_the_library": (
        "DOUBLE",
    ),
    "tests/clients/spark/test_task_writer.py::test_a_worker_of_few_addresses": ("2,000 columns",),
    "tests/clients/spark/test_spark_values.py::test_nested_values_that_a_frame_calls_not_null": ("query1",),
    "tests/clients/test_catalog.py::test_a_forked_child": ("direct",),
    "tests/clients/test_catalog.py::test_an_interrupt_ends_the_wait": ("remote",),
    "tests/clients/test_catalog.py::test_programs_are_started_while_calls_run": ("remote",),
    "tests/clients/test_scenarios.py::test_a_script_prints_what_it_says": (
        "apply-storage",
        "bad_names-daemon",
        "bad_places-storage",
        "columns-storage",
        "damage-storage",
        "expiry-daemon",
        "first_session-storage",
        "objects-daemon",
    ),
    "tests/clients/transactions/test_given_ids.py::test_processes_that_race_with_one_id": ("remote",),
    "tests/clients/transactions/test_rows_at_data_roots.py::test_lost_data_at_a_root_is_named": ("direct",),
    "tests/clients/transactions/test_rows_at_data_roots.py::test_one_transaction_makes_namespace_table_and_rows": (
        "direct",
    ),
    "tests/compat/test_olympia_writing.py::test_a_catalog_of_the_sdk_is_written_on": (
        "g1-small",
        "g2b-two-levels",
        "g6b-names-outside-the-rules",
        "x2-utf16-order",
    ),
    "tests/compat/test_olympia_writing.py::test_random_operations_equal_those_on_a_dict": (
        "g1-small",
        "g2b-two-levels",
        "x2-utf16-order",
    ),
    "tests/compat/test_own_revisions.py::test_it_is_written_on": ("own-r1-32", "own-r1-expired"),
    "tests/compat/test_own_revisions.py::test_its_actions_give_its_definitions_again": ("own-r1-64",),
    "tests/compat/test_own_revisions.py::test_one_seed_writes_the_same_bytes_and_what_was_asked": ("64",),
    "tests/compat/test_own_rows.py::test_it_is_written_on": ("rows-r1-32",),
    "tests/compat/test_own_rows.py::test_its_actions_give_its_definitions_again": ("rows-r1-64",),
    "tests/daemon/serve/test_weights.py::test_the_largest_honest_transactions_pass": (
        "many_operations",
        "many_columns_read",
    ),
    "tests/daemon/test_tag_rules.py::test_moments_of_cron_do_not_depend_on_when_the_daemon_looks": (
        "30 2 * * *",
        "0 3 * * sun",
        "15 1",
        "0 0 1 * *",
        "Australia/Lord_Howe",
    ),
    "tests/faults/test_commit_faults.py::test_cancelled_at_any_point": ("True",),
    "tests/faults/test_commit_faults.py::test_storms": ("True",),
    "tests/faults/test_disk_errors.py::test_a_fault_of_any_call_that_syncs_all_at_once": ("5", "38"),
    "tests/faults/test_disk_errors.py::test_no_space_at_any_call": (
        "99-False-28",
        "1-True-122",
    ),
    "tests/faults/test_power_cut.py::test_every_power_cut_with_one_sync_of_all": ("lone_commits", "hints"),
    "tests/faults/test_s3_faults.py::test_whatever_becomes_of_the_root_it_is_committed_once": (
        "[LoseReply(hang=False)]",
        "[CutBefore()]",
        "[Blackhole()]",
        "[Twice()]",
        "[Hold(hang=False)]",
        "[Answer(status=503, body=b'', headers={}, applied=True)]",
    ),
    "tests/faults/test_simulation.py::test_broken_changes_of_rows_are_found": (
        "forgets the sequences of files",
        "hides too much",
        "compacts too early",
    ),
    "tests/faults/test_simulation.py::test_broken_variants_are_found": (
        "skips versions",
        "the store ignores the condition",
        "forgets the retry keys",
        "ignores its own commit id",
        "rebases without settling",
    ),
    "tests/faults/test_spark_s3_faults.py::test_executors_that_are_killed_or_hang": ("result",),
    "tests/faults/test_upkeep_faults.py::test_paused_in_the_upkeep": (
        "checkpoint.put",
        "commit.ahead_staged",
        "index.put",
        "symbols.compacted",
    ),
    "tests/journal/storage/test_storage_s3.py::test_a_completion_whose_answer_is_lost_is_begun_anew": (
        "LoseReply(hang=False)",
    ),
    "tests/journal/test_journal.py::test_groups_of_several_writers": ("True",),
    "tests/journal/test_journal.py::test_random_histories_of_several_writers": ("64",),
}
"""Tests of which a short run has these cases alone: whole names, or the values of one parameter."""


ELSEWHERE = (
    "tests/journal/storage/test_storage_object_store.py::TestAzure::test_delete_thousands_together",
    "tests/journal/storage/test_storage_object_store.py::TestAzure::test_list_many",
    "tests/journal/storage/test_storage_object_store.py::TestS3::test_delete_thousands_together",
    "tests/journal/storage/test_storage_object_store.py::TestS3::test_list_many",
    "tests/journal/storage/test_storage_s3.py::TestS3::test_delete_thousands_together[ministack]",
    "tests/journal/storage/test_storage_s3.py::TestS3::test_delete_thousands_together[versitygw]",
)
"""Tests that a short run leaves out, because other stores and test_delete_many.py run the same code."""


class Case(Protocol):
    """What is asked of an item of pytest."""

    @property
    def nodeid(self) -> str: ...


def left_out(items: Sequence[Case]) -> Iterator[Case]:
    """Yield the cases that a short run leaves out."""
    cases = defaultdict(list)
    if len(items) > 1:
        yield from (item for item in items if item.nodeid in ELSEWHERE)
    for item in items:
        test, bracket, name = item.nodeid.partition("[")
        if bracket and (test in EVERY or test in CASES):
            cases[test].append((name.removesuffix("]"), item))
    for test, found in cases.items():
        if test in EVERY:
            yield from (item for at, (_, item) in enumerate(found) if at % EVERY[test])
        else:
            kept = CASES[test]
            out = [item for name, item in found if name not in kept and not {*name.split("-")} & {*kept}]
            # If none stays, somebody asked for these by name.
            yield from out if len(out) < len(found) else ()
