"""The faults that `make mutants` puts into the product, one at a time, and the tests that must catch each of them.

A fault is a plausible mistake of a maintainer: a rule left out, a bound off by one step, an identity cut short. Three
rules for whoever edits this list:

* `old` occurs exactly once in its file. Code that is rewritten takes its fault along: change `old` and `new` with it.
* `tests` are the cheapest tests that show the fact, at the lowest level. A test that moves is renamed here, in one
  place: the files are named once, below.
* A fault that no test catches is a missing test, never a fault to delete.
"""

from __future__ import annotations

from dataclasses import dataclass

# --- the test files -------------------------------------------------------------------------------------------------

RULES = "tests/engine/commit/conflicts/test_rules.py"
REFINEMENTS = "tests/engine/commit/conflicts/test_refinements.py"
MATRIX = "tests/engine/commit/conflicts/test_matrix.py"
LOOP = "tests/engine/commit/test_loop.py"
HANDED = "tests/engine/commit/test_handed.py"
CREDENTIALS = "tests/storage/test_credentials.py"
ROW_TRACKING = "tests/engine/commit/content/test_row_tracking.py"
STAGED_UNDER_OTHER_RULES = "tests/engine/test_soundness.py"
REPLAY = "tests/engine/table/snapshot/test_replay.py"
PARTITIONS = "tests/engine/table/columns/test_partitions.py"
BOUNDS = "tests/engine/table/columns/test_statistics.py"
PRUNING = "tests/engine/table/predicate/test_pruning.py"
CONFINEMENT = "tests/engine/table/predicate/test_confinement.py"
DELETED_ROWS = "tests/engine/table/snapshot/test_deleted_rows.py"
MAPPING = "tests/engine/table/schema/test_column_mapping.py"
FEATURES = "tests/engine/table/schema/test_features.py"
PATHS = "tests/engine/log/test_log_paths.py"
VACUUM = "tests/engine/upkeep/test_vacuum_files.py"
RESTORE = "tests/engine/upkeep/test_restore.py"
STATISTICS = "tests/datafiles/parquet/test_statistics.py"
READING = "tests/datafiles/parquet/test_reading.py"
COPYING = "tests/datafiles/parquet/test_rewriting.py"
TASKS = "tests/datafiles/parquet/test_writing.py"
CHANGE_ROWS = "tests/datafiles/tasks/test_changes.py"
SAVED_WORK = "tests/jobs/resume/test_histories.py"
REAUDITED = "tests/jobs/resume/test_reaudited.py"
FORGED_MEMORY = "tests/security/test_forged_memory.py"
KEYS = "tests/jobs/operations/delete/test_key_values.py"
ATTEMPTS = "tests/jobs/resume/test_attempts_by_the_log.py"
LOG_JOBS = "tests/jobs/operations/test_log_jobs.py"
RETRY_POLICY = "tests/airflow/policies/test_retry_policy.py"
CLOUDS = "tests/storage/test_clouds.py"
KEPT_IDS = "tests/jobs/rows/test_row_tracking.py"
CLAUSES = "tests/jobs/operations/merge/test_clauses.py"
JOIN_STRATEGY = "tests/jobs/operations/merge/test_join_strategy.py"
BATCHES = "tests/jobs/files/test_batches.py"
REPLACE_USING = "tests/jobs/operations/write/test_replace_using.py"
FOOTER_FORMS = "tests/datafiles/parquet/test_footer_forms.py"
CONVERT = "tests/jobs/operations/test_convert.py"
CLONE = "tests/jobs/operations/clone/test_clone.py"
KILLED_CLONES = "tests/jobs/operations/clone/test_killed_clones.py"
UPKEEP = "tests/jobs/operations/test_upkeep.py"
ALTER = "tests/jobs/operations/alter/test_alter.py"
VERIFICATION = "tests/jobs/operations/alter/test_verification.py"
TASK_ROWS = "tests/airflow/test_task_rows.py"
IDENTITIES = "tests/engine/table/schema/test_identities.py"
IDENTITY_COLUMNS = "tests/jobs/test_identity_columns.py"
SMALL_FILES = "tests/datafiles/tasks/test_small_files.py"
CUBES = "tests/jobs/operations/optimize/test_cubes.py"
CLUSTERING = "tests/engine/commit/conflicts/test_clustering_winner.py"
EXPECTATIONS = "tests/jobs/rows/test_expectations.py"
SAMPLES = "tests/jobs/rows/test_samples.py"
KEY_ROWS = "tests/datafiles/tasks/test_key_rows.py"
FOUND_ROWS = "tests/datafiles/tasks/test_found_rows.py"
USED_VALUES = f"{COPYING}::test_text_is_copied_as_the_dictionary_that_it_is_and_nothing_deleted_stays_in_it"
INCREMENTS = "tests/jobs/operations/changes/test_incremental.py"
# These need Spark.
COMPUTED_VALUES = "tests/jobs/operations/test_update.py::test_computed_values_are_not_taken_for_numbers_of_tasks"
CURRENT_TIME = "tests/jobs/sql/test_clocks.py"
MERGES_WITHOUT_SPARK = "tests/jobs/test_merges_without_spark.py"
MERGE_KEYS = "tests/jobs/operations/merge/test_key_filter.py"
NEVER_START_OVER = "tests/jobs/resume/test_never_start_over.py"
WRITE = "tests/jobs/operations/write/test_write.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mistake, and what must notice it."""

    name: str
    breaks: str
    """What goes wrong for a user, in one line."""
    file: str
    old: str
    """The code as it is; occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest: files, or test functions in them."""
    needs_spark: bool = False


_CONFLICTS = "airflow_txlog/engine/commit/conflicts.py"
_LOOP = "airflow_txlog/engine/commit/loop.py"
_COURSE = "airflow_txlog/engine/commit/course.py"
_TRANSACTION = "airflow_txlog/engine/commit/transaction.py"
_VACUUM_PLAN = "airflow_txlog/engine/upkeep/vacuum_plan.py"
_ATTEMPTS = "airflow_txlog/jobs/resume/attempts.py"

FAULTS = (
    # --- conflicts: each rule left out ------------------------------------------------------------------------------
    Fault(
        name="winning-protocol-ignored",
        breaks="rows staged before a feature was added are committed under it",
        file=_CONFLICTS,
        old="    attempt = reconcile_protocol(attempt, winner)\n",
        new="",
        tests=(STAGED_UNDER_OTHER_RULES,),
    ),
    Fault(
        name="winning-metadata-ignored",
        breaks="rows that were never checked against a new constraint or schema are committed",
        file=_CONFLICTS,
        old="    attempt = reconcile_metadata(attempt, winner)\n",
        new="",
        tests=(STAGED_UNDER_OTHER_RULES,),
    ),
    Fault(
        name="winning-domain-ignored",
        breaks="two commits write one domain, and the first one's configuration is lost",
        file=_CONFLICTS,
        old="    check_domains(attempt, winner)\n",
        new="",
        tests=(RULES,),
    ),
    Fault(
        name="winning-application-transaction-ignored",
        breaks="two copies of one task both commit",
        file=_CONFLICTS,
        old="    check_application_transactions(attempt, winner)\n",
        new="",
        tests=(LOOP,),
    ),
    Fault(
        name="winning-added-files-ignored",
        breaks="rows that landed meanwhile and match the condition are not deleted, or are inserted twice",
        file=_CONFLICTS,
        old="    how = check_added_files(attempt, winner)\n",
        new="    how = How.NO_DATA\n",
        tests=(REFINEMENTS,),
    ),
    Fault(
        name="removed-files-that-were-read-ignored",
        breaks="an update that landed first is lost",
        file=_CONFLICTS,
        old="    check_deleted_against_read(attempt, winner)\n",
        new="",
        tests=(REFINEMENTS,),
    ),
    Fault(
        name="files-removed-twice-ignored",
        breaks="two overwrites of one partition both count its rows as theirs",
        file=_CONFLICTS,
        old="    check_deleted_against_read(attempt, winner)\n    check_deleted_against_deleted(attempt, winner)\n",
        new="    check_deleted_against_read(attempt, winner)\n",
        tests=(RULES,),
    ),
    Fault(
        name="restore-is-rebased",
        breaks="a restore is committed on top of a commit that it has never seen",
        file=_CONFLICTS,
        old="    if attempt.never_rebases:\n",
        new="    if attempt.never_rebases and attempt.is_blind_append:\n",
        tests=(RESTORE,),
    ),
    Fault(
        name="compaction-believed-without-counting",
        breaks="a winner that calls its change a compaction adds rows that match, and they are missed",
        file="airflow_txlog/engine/commit/conflicts.py",
        old="    return sum(filter(None, removed)) == sum(filter(None, added))\n",
        new="    return True\n",
        tests=(REFINEMENTS,),
    ),
    Fault(
        name="append-ordered-after-us-at-serializable",
        breaks="at Serializable an appended row that matches is missed, as only WriteSerializable allows",
        file=_CONFLICTS,
        old="        attempt.isolation is IsolationLevel.WRITE_SERIALIZABLE\n        and (winner.info",
        new="        (winner.info",
        tests=(MATRIX,),
    ),
    Fault(
        name="read-counts-as-blind-append",
        breaks="two merges that insert the same missing key both commit",
        file=_TRANSACTION,
        old="is_blind_append=not self.reads.reads_data and not",
        new="is_blind_append=not",
        tests=(REFINEMENTS,),
    ),
    Fault(
        name="blind-append-counts-as-read",
        breaks="appends collide with everything that adds rows",
        file=_TRANSACTION,
        old="is_blind_append=not self.reads.reads_data and not self._removes and not self._changes",
        new="is_blind_append=False",
        tests=(MATRIX,),
    ),
    # --- the commit loop --------------------------------------------------------------------------------------------
    Fault(
        name="own-commit-not-recognised",
        breaks="a put that landed without an answer counts as a lost race, and the change is committed twice",
        file=_LOOP,
        old="(_Put.OURS if found == data else _Put.ANOTHERS), found",
        new="_Put.ANOTHERS, found",
        tests=(LOOP,),
    ),
    Fault(
        name="replaced-table-unnoticed",
        breaks="a commit lands in another table that was created at the same place meanwhile",
        file=_COURSE,
        old="            if found != self.anchor:\n",
        new="            if found is None:\n",
        tests=(LOOP,),
    ),
    Fault(
        name="commit-of-another-log-followed",
        breaks="a commit is put behind one of a table that was there before, and the log has a gap",
        file=_COURSE,
        old=" and each.after == self.tip:",
        new=":",
        tests=(HANDED,),
    ),
    Fault(
        name="left-commit-followed",
        breaks="a commit is put behind one that a dead writer has left and the log has lost: the log has a gap",
        file=_COURSE,
        old="self._follow([each for each in turn.handed() if each not in known])",
        new="self._follow(turn.handed())",
        tests=(HANDED,),
    ),
    Fault(
        name="old-listing-trusted",
        breaks="a table that was made again while its writer waited gets the commit of the one before",
        file=_COURSE,
        old=" or clock.monotonic_s() - listed_s > _LOOK_HOLDS_S:",
        new=":",
        tests=(HANDED,),
    ),
    Fault(
        name="unlisted-commit-never-compared",
        breaks="a commit that was checked against what the log does not hold is not noticed",
        file=_COURSE,
        old="            if info is None or (info.etag != each.digest and self.store.read(path) != each.data):\n",
        new="            if info is None:\n",
        tests=(HANDED,),
    ),
    Fault(
        name="unanswered-commit-handed-on",
        breaks="a commit is handed on that its writer has not seen created",
        file=_LOOP,
        old="None if course.was_unanswered else handed_on(version, tip, data)",
        new="handed_on(version, tip, data)",
        tests=(HANDED,),
    ),
    Fault(
        name="damaged-commit-followed",
        breaks="a commit is checked against half of another one",
        file="airflow_txlog/engine/commit/handed.py",
        old="        if digest_of(data).encode() != digest:\n",
        new="        if False:\n",
        tests=(HANDED,),
    ),
    Fault(
        name="commit-of-another-caller-followed",
        breaks="a commit is put behind one of another server, or of a bucket of the same name",
        file="airflow_txlog/engine/commit/handed.py",
        old="        if whose == mark:\n",
        new="        if True:\n",
        tests=(HANDED,),
    ),
    Fault(
        name="handed-commit-unproven",
        breaks="a snapshot holds a commit that the log does not hold",
        file="airflow_txlog/engine/log/tail.py",
        old="    return {info: data for info, data in files.items() if is_etag_of(info.etag, data)}\n",
        new="    return files\n",
        tests=(HANDED,),
    ),
    Fault(
        name="handed-commits-stay",
        breaks="rows' statistics stay in the folder for temporary files after the last writer",
        file="airflow_txlog/engine/commit/writers.py",
        old="                    os.ftruncate(self._held, _HINT_BYTES)\n",
        new="",
        tests=(HANDED,),
    ),
    Fault(
        name="row-ids-not-renumbered",
        breaks="after a lost race two rows have one row id",
        file="airflow_txlog/engine/commit/conflicts.py",
        old="after_winner(_after_row_ids(attempt, winner), winner)",
        new="after_winner(attempt, winner)",
        tests=(ROW_TRACKING,),
    ),
    # --- the state of a version -------------------------------------------------------------------------------------
    Fault(
        name="tombstone-expired-during-replay",
        breaks="a file that was removed long ago comes back with all its rows",
        file="airflow_txlog/engine/table/snapshot/replay.py",
        old="self._first_spoken_of(commit.removes, root)",
        new="self._first_spoken_of([r for r in commit.removes if (r.deletion_timestamp or 0) > 604_800_000], root)",
        tests=(REPLAY,),
    ),
    Fault(
        name="file-identified-by-path-alone",
        breaks="a remove of a file without its deletion vector removes the file with it",
        file="airflow_txlog/engine/table/snapshot/files.py",
        old="    return key if vector is None else key + _SEPARATOR + vector.unique_id\n",
        new="    return key\n",
        tests=(REPLAY,),
    ),
    Fault(
        name="empty-partition-value-is-not-null",
        breaks="rows of the null partition are missed where a writer spelled it as an empty string",
        file="airflow_txlog/engine/table/columns/partitions.py",
        old="plain = [codec.read(text) if text and codec is not None else None for text in texts]",
        new="plain = [None if text is None or codec is None else codec.read(text) for text in texts]",
        tests=(PARTITIONS,),
    ),
    Fault(
        name="unknown-feature-passed-over",
        breaks="a table whose reader feature we do not know is read, wrongly",
        file="airflow_txlog/engine/table/schema/features.py",
        old="        if name in READABLE:\n",
        new="        if name in READABLE or name not in active:\n",
        tests=(FEATURES,),
    ),
    Fault(
        name="column-found-by-logical-name",
        breaks="after a rename a column shows the values of another one",
        file="airflow_txlog/datafiles/parquet/physical.py",
        old="            return self._ids.get(wanted.metadata[FIELD_ID_KEY])\n",
        new="            return self.find_name(wanted.name)\n",
        tests=(MAPPING,),
    ),
    Fault(
        name="path-decoded-twice",
        breaks="a remove names another file than the one that was added",
        file="airflow_txlog/engine/log/paths.py",
        old="    path = unquote(path)\n",
        new="    path = unquote(unquote(path))\n",
        tests=(PATHS,),
    ),
    # --- predicates and statistics ----------------------------------------------------------------------------------
    Fault(
        name="cut-maximum-of-a-string-trusted",
        breaks="a file is skipped that holds a string longer than its statistics show",
        file="airflow_txlog/engine/table/columns/statistic_columns.py",
        old="    bounds = _after(values) if side else values\n",
        new="    bounds = values\n",
        tests=(PRUNING,),
    ),
    Fault(
        name="cut-maximum-of-a-string-trusted-beside-odd-statistics",
        breaks="the same, where the statistics of one file cannot be parsed together with those of others",
        file="airflow_txlog/engine/table/columns/statistic_values.py",
        old='    return known, first_after(known.removesuffix("?") if replaced else known)\n',
        new="    return known, known\n",
        tests=(BOUNDS,),
    ),
    Fault(
        name="cut-maximum-of-a-timestamp-trusted",
        breaks="a file is skipped whose last row lies within the millisecond that statistics cut off",
        file="airflow_txlog/engine/table/columns/statistic_values.py",
        old='            return pc.add(moments, pa.scalar(_CUT_US, pa.duration("us"))) if side else moments\n',
        new="            return moments\n",
        tests=(PRUNING,),
    ),
    Fault(
        name="cut-maximum-of-a-timestamp-of-another-form-trusted",
        breaks="the same, within the second that statistics without a fraction cut off",
        file="airflow_txlog/engine/table/columns/statistic_values.py",
        old='    upper = lower + (_CUT_US if "." in str(value) else _CUT_WITHOUT_FRACTION_US)\n',
        new="    upper = lower + 1\n",
        tests=(BOUNDS,),
    ),
    Fault(
        name="maximum-written-beside-nan",
        breaks="other engines skip files of ours that hold NaN, which Spark orders above every number",
        file="airflow_txlog/datafiles/parquet/statistics.py",
        old="        return lower, None if self._has_nan else upper\n",
        new="        return lower, upper\n",
        tests=(f"{STATISTICS}::test_a6_a_column_that_holds_nan_has_no_max",),
    ),
    Fault(
        name="maximum-of-a-float-trusted",
        breaks="a file with NaN is skipped by `x > 5`, and its rows stay",
        file="airflow_txlog/engine/table/columns/statistics.py",
        old="may_hold_nan=column.type in (Primitive.FLOAT, Primitive.DOUBLE)",
        new="may_hold_nan=False",
        tests=(PRUNING,),
    ),
    Fault(
        name="function-not-refused",
        breaks="a condition calls any Java method",
        file="airflow_txlog/sql/confinement.py",
        old='    (_FOREIGN_CODE, "the function {}()", "It calls arbitrary Java code."),\n',
        new="",
        tests=(CONFINEMENT,),
    ),
    # --- data files -------------------------------------------------------------------------------------------------
    Fault(
        name="deleted-rows-read",
        breaks="rows that a deletion vector deletes are shown",
        file="airflow_txlog/engine/table/snapshot/scan.py",
        old="read_file(wanted, None if deleted is None else deleted.keep, deleted)",
        new="read_file(wanted, None, deleted)",
        tests=(DELETED_ROWS,),
    ),
    Fault(
        name="deleted-rows-copied",
        breaks="rows that a deletion vector deletes come back when their file is rewritten",
        file="airflow_txlog/datafiles/parquet/rewriting.py",
        old="            keep = kept_by_both(keep, deleted.keep(start, batch.num_rows))\n",
        new="            deleted.keep(start, batch.num_rows)\n",
        tests=(f"{TASKS}::test_a_copy_has_neither_masked_rows_nor_those_at_the_positions",),
    ),
    Fault(
        name="copy-takes-the-schema-of-the-table",
        breaks="a copied file is no longer what its writer wrote: types, field ids and absent columns change",
        file="airflow_txlog/datafiles/parquet/rewriting.py",
        old="    return kind\n\n\ndef _copied_fields",
        new="    return kind if wanted is None else wanted\n\n\ndef _copied_fields",
        tests=(f"{COPYING}::test_a19_a_copy_keeps_schema_field_ids_and_footer_metadata",),
    ),
    Fault(
        name="int96-read-as-nanoseconds",
        breaks="9999-12-31 becomes 1816 in every file that is copied",
        file="airflow_txlog/datafiles/parquet/reading.py",
        old='"coerce_int96_timestamp_unit": "us"',
        new="",
        tests=(f"{COPYING}::test_a7_far_timestamps_survive_a_copy",),
    ),
    Fault(
        name="legacy-calendar-overlooked",
        breaks="old dates of a file in the Julian calendar are shown days apart",
        file="airflow_txlog/datafiles/parquet/reading.py",
        old="(version < (3, 0) or _LEGACY_DATETIME in footer)",
        new="version < (3, 0)",
        tests=(READING,),
    ),
    Fault(
        name="update-reported-as-a-delete",
        breaks="a reader of the change data feed sees an updated row go and not change",
        file="airflow_txlog/datafiles/tasks/copies.py",
        old="pc.if_else(is_update, UPDATE_PREIMAGE, DELETE)",
        new="pc.if_else(is_update, DELETE, DELETE)",
        tests=(CHANGE_ROWS,),
    ),
    # --- VACUUM -----------------------------------------------------------------------------------------------------
    Fault(
        name="no-floor-under-the-orphan-retention",
        breaks="a vacuum deletes files that a running job has staged",
        file="airflow_txlog/engine/upkeep/vacuum.py",
        old="max(retention, request.orphan_retention_ms, ORPHAN_RETENTION_FLOOR_MS)",
        new="max(retention, request.orphan_retention_ms)",
        tests=(VACUUM,),
    ),
    Fault(
        name="deletion-vector-counts-as-an-orphan",
        breaks="a vacuum deletes the deletion vector of a live file",
        file=_VACUUM_PLAN,
        old="    for vector in vectors.filter(pc.is_valid(vectors)).to_pylist():\n",
        new="    for vector in vectors.filter(pc.is_null(vectors)).to_pylist():\n        continue\n",
        tests=(VACUUM,),
    ),
    Fault(
        name="change-file-goes-at-once",
        breaks="a vacuum deletes the change files of a commit inside the retention",
        file="airflow_txlog/engine/upkeep/removed_files.py",
        old="data_change=False, deletion_timestamp=committed_ms)",
        new="data_change=False)",
        tests=(VACUUM,),
    ),
    Fault(
        name="absolute-path-protects-nothing",
        breaks="a vacuum deletes a live file that the log names by an absolute path through a link",
        file=_VACUUM_PLAN,
        old=' or info.path.rsplit("/", 1)[-1] in named.needed_elsewhere:',
        new=":",
        tests=(VACUUM,),
    ),
    # --- jobs, retries ----------------------------------------------------------------------------------------------
    Fault(
        name="saved-work-kept-by-path-alone",
        breaks="rows that another writer deleted by a deletion vector come back after a conflict",
        file="airflow_txlog/jobs/resume/memory.py",
        old="        if scan.vector == file.vector:\n",
        new="        if scan is not None:\n",
        tests=(SAVED_WORK,),
    ),
    Fault(
        name="null-key-accepted",
        breaks="a null among the keys of a delete passes for a key, and a broken list goes unnoticed",
        file="airflow_txlog/engine/table/schema/exact_values.py",
        old="        if not skips_nulls:\n            place",
        new="        if not skips_nulls and column.null_count == len(column):\n            place",
        tests=(KEYS,),
    ),
    Fault(
        name="application-transaction-looked-up-once",
        breaks="after a conflict with its own copy a job does its work a second time",
        file=_ATTEMPTS,
        old="        done = self._done(tx)\n",
        new="        done = self._done(tx) if number == 1 else None\n",
        tests=(ATTEMPTS,),
    ),
    Fault(
        name="recorded-transaction-not-believed",
        breaks="a task that is retried after its commit changes the table twice",
        file="airflow_txlog/exactly_once/transactions.py",
        old="recorded.version < wanted.version",
        new="recorded.version <= wanted.version",
        tests=(LOG_JOBS,),
    ),
    Fault(
        name="staged-files-deleted-when-the-outcome-is-unknown",
        breaks="a commit that landed after all names files that are gone",
        file=_ATTEMPTS,
        old="                self.fate_is_known = False\n            raise\n",
        new="                pass\n            raise\n",
        tests=(ATTEMPTS,),
    ),
    Fault(
        name="everything-is-retried",
        breaks="Airflow repeats a task that cannot succeed, such as one with a constraint violation",
        file="airflow_txlog/policies/rings.py",
        old="isinstance(error, TxlogError) and error.retryable",
        new="isinstance(error, TxlogError)",
        tests=(RETRY_POLICY,),
    ),
    Fault(
        name="null-safe-key-never-meets-null",
        breaks="a merge ON t.k <=> s.k overlooks the target row without a key and inserts it once more",
        file="airflow_txlog/jobs/operations/merge/keys.py",
        old='return any_of([found, Call("is null", (column,))]) if equality.null_safe and values.null_count else found',
        new="return found",
        tests=(MERGE_KEYS,),
    ),
    Fault(
        name="key-twice-in-the-source-of-an-upsert",
        breaks="an upsert inserts two rows of one key",
        file="airflow_txlog/jobs/operations/merge/by_keys.py",
        old="pc.greater(counts, pa.scalar(1, pa.int64()))",
        new="pc.greater(counts, pa.scalar(2, pa.int64()))",
        tests=(MERGES_WITHOUT_SPARK,),
    ),
    Fault(
        name="empty-snapshot-empties-the-table",
        breaks="an export that fails without a row deletes every row of the table",
        file="airflow_txlog/jobs/operations/changes/apply_snapshot.py",
        old="if gone and not self.num_given(prepared):",
        new="if not gone and not self.num_given(prepared):",
        tests=("tests/jobs/operations/changes/test_apply_snapshot.py",),
    ),
    Fault(
        name="events-count-that-do-not-add-up-to-the-row",
        breaks="a partial event brings back values that another operation has deleted",
        file="airflow_txlog/datafiles/tasks/history_rows.py",
        old="return items.filter(pc.or_(adds_up, whole(items.column(DELETES_COLUMN))))",
        new="return items",
        tests=("tests/jobs/operations/changes/test_ignored_nulls.py",),
    ),
    Fault(
        name="past-versions-take-part-in-a-snapshot",
        breaks="a snapshot ends versions that have ended, or finds a row that has come back unchanged",
        file="airflow_txlog/jobs/operations/merge/job.py",
        old="only = None if taking_part is None else taking_part.tree",
        new="only = None",
        tests=("tests/jobs/operations/changes/test_snapshot_history.py",),
    ),
    Fault(
        name="last-row-of-each-key-is-used",
        breaks="deduplicate_order_by DESC keeps the oldest row of a key",
        file="airflow_txlog/jobs/source/folded.py",
        old='"descending" if is_descending else "ascending"',
        new='"ascending" if is_descending else "descending"',
        tests=("tests/jobs/source/test_deduplicated.py",),
    ),
    # --- jobs that need Spark, last ---------------------------------------------------------------------------------
    Fault(
        name="retry-has-a-current-time-of-its-own",
        breaks="`ts < now()` deletes rows that are younger than the first try",
        file="airflow_txlog/jobs/resume/saved_work.py",
        old="CurrentTime(self._context.executor.now, found.clocks)",
        new="CurrentTime(self._context.executor.now)",
        tests=(f"{CURRENT_TIME}::test_b1_a_retry_that_resumes_has_the_now_of_the_first_try",),
        needs_spark=True,
    ),
    Fault(
        name="staged-inserts-kept-whatever-matches",
        breaks="after a conflict a merge inserts a row that is there by now, or does not insert one that is gone",
        file="airflow_txlog/jobs/operations/merge/job.py",
        old='f"{number}/{count}:{digest}"',
        new='f"{number}/{count}"',
        tests=(NEVER_START_OVER,),
        needs_spark=True,
    ),
    Fault(
        name="row-outside-the-partition-predicate-accepted",
        breaks="a backfill of one day writes rows of another one",
        file="airflow_txlog/jobs/sql/scope.py",
        old="            if not is_inside:\n",
        new="            if is_inside is None:\n",
        tests=(f"{WRITE}::test_a_row_outside_the_scope_is_an_error_and_leaves_nothing",),
        needs_spark=True,
    ),
    # --- saved work -------------------------------------------------------------------------------------------------
    Fault(
        name="saved-work-of-any-writer-counts",
        breaks="whoever writes to the table's folder decides what a retry deletes and commits",
        file="airflow_txlog/jobs/resume/saved_work.py",
        old="        return self._seal.is_signed(_KIND, name[1].encode(), name[4])\n",
        new="        return True\n",
        tests=(FORGED_MEMORY,),
        needs_spark=True,
    ),
    Fault(
        name="signature-without-the-transaction",
        breaks="what one task saved is replayed to another",
        file="airflow_txlog/exactly_once/transactions.py",
        old="self._of = (_FORMAT, root, application.app_id, str(application.version))",
        new="self._of = (_FORMAT, root)",
        tests=(FORGED_MEMORY,),
        needs_spark=True,
    ),
    Fault(
        name="saved-bytes-of-any-content",
        breaks="bytes that were changed under a signed name are believed",
        file="airflow_txlog/jobs/resume/saved_work.py",
        old="if name is None or hashlib.sha256(data).hexdigest() != name[3]:",
        new="if name is None:",
        tests=(FORGED_MEMORY,),
        needs_spark=True,
    ),
    Fault(
        name="saved-path-leaves-the-table",
        breaks="a saved file is one outside the table",
        file="airflow_txlog/jobs/files/staged.py",
        old="    *directories, name = inner_parts(path)\n",
        new='    *directories, name = [part for part in path.split("/") if part != ".."]\n',
        tests=(FORGED_MEMORY,),
        needs_spark=True,
    ),
    Fault(
        name="saved-source-rows-of-any-content",
        breaks="a retry merges rows that were put in place of the source's",
        file="airflow_txlog/datafiles/parquet/output.py",
        old="    return found.hexdigest() == digest\n",
        new="    return True\n",
        tests=("tests/datafiles/parquet/test_digests.py",),
    ),
    # --- credentials ------------------------------------------------------------------------------------------------
    Fault(
        name="endpoint-without-a-token",
        breaks="any user of the machine gets the credentials of a connection",
        file="airflow_txlog/runners/credentials_endpoint.py",
        old="if not hmac.compare_digest(shown.encode(), self.token.encode()):",
        new="if not shown:",
        tests=(CREDENTIALS,),
    ),
    Fault(
        name="credentials-of-a-connection-that-no-job-names",
        breaks="a job gets the credentials of any connection that its task has used",
        file="airflow_txlog/runners/credentials_endpoint.py",
        old="            self._connections.remove(connection)\n",
        new="            pass\n",
        tests=(CREDENTIALS,),
    ),
    Fault(
        name="credentials-kept-to-their-end",
        breaks="requests are signed with credentials that expire on their way",
        file="airflow_txlog/storage/credentials.py",
        old="life_ms - min(life_ms // 4, _MARGIN_MS)",
        new="life_ms + 1",
        tests=(CREDENTIALS,),
    ),
    # --- object stores ----------------------------------------------------------------------------------------------
    Fault(
        name="lying-server-believed",
        breaks="two writers make one version on a server that ignores the condition of a put",
        file="airflow_txlog/storage/bucket.py",
        old='b"probe", if_absent=True))\n    except NameTaken:\n',
        new='b"probe", if_absent=True))\n        return\n    except NameTaken:\n',
        tests=(CLOUDS,),
    ),
    Fault(
        name="credentials-for-a-foreign-account",
        breaks="a log that names another storage account has this process's token sent there",
        file="airflow_txlog/storage/azure.py",
        old="        if (other.account, other.cloud) != (place.account, place.cloud):\n",
        new="        if other.cloud != place.cloud:\n",
        tests=(CLOUDS,),
    ),
    Fault(
        name="part-sent-twice",
        breaks="a part whose answer was lost is in the file twice",
        file="airflow_txlog/storage/gcs.py",
        old="        stored = self._stored(upload) if upload.tried == number else start\n",
        new="        stored = start\n",
        tests=(CLOUDS,),
    ),
    Fault(
        name="wrapper-for-one-writer",
        breaks="a cache in front of a file system holds a table",
        file="airflow_txlog/storage/unproven.py",
        old="    if scheme in _WRAPPERS:\n        return False\n",
        new="",
        tests=("tests/storage/test_store_open.py",),
    ),
    Fault(
        name="csv-empty-text-for-null",
        breaks="an empty text in quotes of a CSV file becomes null, where Spark reads a text",
        file="airflow_txlog/datafiles/text_lines.py",
        old="    if csv.null and has_quotes and _any(",
        new="    if not csv.null and has_quotes and _any(",
        tests=("tests/datafiles/test_csv_rows.py",),
    ),
    # --- row ids ----------------------------------------------------------------------------------------------------
    Fault(
        name="copied-rows-numbered-anew",
        breaks="a row that moves to another file loses the id that it has there",
        file="airflow_txlog/datafiles/row_ids.py",
        old="columns[ids] = pc.coalesce(columns[ids], pc.add(numbers, base))",
        new="columns[ids] = pc.add(numbers, base)",
        tests=(KEPT_IDS,),
    ),
    Fault(
        name="row-ids-begin-again-in-each-batch",
        breaks="two rows of one file get the same id as they are copied",
        file="airflow_txlog/datafiles/row_ids.py",
        old="pa.array(range(start, start + rows.num_rows), pa.int64())",
        new="pa.array(range(rows.num_rows), pa.int64())",
        tests=(KEPT_IDS,),
    ),
    Fault(
        name="ids-of-rows-lost-as-tiny-files-are-joined",
        breaks="the new files of a change are joined without the ids of their rows",
        file="airflow_txlog/jobs/rows/tiny_files.py",
        old=' or "rowTracking" in writer_features(snapshot.protocol)',
        new="",
        tests=(KEPT_IDS,),
    ),
    Fault(
        name="ids-of-merged-rows-lost-in-spark",
        breaks="a row that a MERGE by Spark updates gets a new id",
        file="airflow_txlog/jobs/operations/merge/by_spark.py",
        old='[] if ids is None else [f"{t}.{KEPT_ID_COLUMN}"]',
        new='[] if ids is None else [f"CAST(NULL AS BIGINT) AS {KEPT_ID_COLUMN}"]',
        tests=(KEPT_IDS,),
    ),
    Fault(
        name="rows-of-a-sorted-join-taken-for-those-of-the-file",
        breaks="rows that Spark has sorted by the source are joined to their files by their order",
        file="airflow_txlog/jobs/operations/merge/by_spark.py",
        old="        if not by_source and size_bytes < self.context.limits.broadcast_bytes:",
        new="        if not by_source:",
        tests=(JOIN_STRATEGY,),
    ),
    Fault(
        name="width-of-the-first-text-only",
        breaks="a row whose later texts are long is sent to a Python worker without a bound of bytes",
        file="airflow_txlog/jobs/files/frames.py",
        old="for text in texts.values())",
        new="for text in [*texts.values()][:1])",
        tests=(BATCHES,),
    ),
    # --- jobs without Spark -----------------------------------------------------------------------------------------
    Fault(
        name="deleted-rows-copied-with-the-updated-ones",
        breaks="a merge that updates and deletes rows of one file keeps the deleted ones",
        file="airflow_txlog/datafiles/tasks/copies.py",
        old='planned.leaving or planned.positions or b""',
        new='planned.positions or b""',
        tests=(CLAUSES,),
    ),
    Fault(
        name="sum-that-wraps-around",
        breaks="a sum that does not fit in its type is a wrong number, where Spark raises an error",
        file="airflow_txlog/sql/evaluation.py",
        old="dates.moving(pc.add_checked, 1)",
        new="dates.moving(pc.add, 1)",
        tests=(CLAUSES,),
    ),
    Fault(
        name="null-replaces-rows",
        breaks="a source row with a null in a column of replace_using removes every row with a null there",
        file="airflow_txlog/jobs/operations/write/job.py",
        old="for values in dict.fromkeys(tuples) if using is None or all(values)]",
        new="for values in dict.fromkeys(tuples)]",
        tests=(REPLACE_USING,),
    ),
    Fault(
        name="rules-compared-by-spark-alone",
        breaks="a constraint is added that rows of the table break",
        file="airflow_txlog/jobs/operations/alter/verification.py",
        old="        self._refuse_broken(found, self._counted(plan, frozenset(columns), rules))\n",
        new="",
        tests=(VERIFICATION,),
    ),
    Fault(
        name="files-verified-under-other-columns",
        breaks="a rule is not compared with a file that another rule was compared with",
        file="airflow_txlog/jobs/operations/alter/verification.py",
        old="self._read.setdefault((schema, *texts.items(), found.not_null), set())",
        new="self._read.setdefault((), set())",
        tests=(VERIFICATION,),
    ),
    Fault(
        name="mark-behind-a-racing-row",
        breaks="a synchronized mark does not pass a value that lands while the job reads",
        file="airflow_txlog/jobs/operations/alter/job.py",
        old="or found.not_null or found.to_sync:",
        new="or found.not_null:",
        tests=("tests/jobs/operations/alter/test_sync_identity.py",),
    ),
    Fault(
        name="changed-folder-converted",
        breaks="a file that was written while a folder was converted is in no table",
        file="airflow_txlog/jobs/operations/convert/job.py",
        old="            self._check_unchanged(before)\n",
        new="            pass\n",
        tests=(CONVERT,),
    ),
    Fault(
        name="bounds-of-early-writers-taken",
        breaks="a converted file has bounds that its writer has compared in another order",
        file="airflow_txlog/datafiles/parquet/footer_statistics.py",
        old="if not footer.num_rows or is_of_old_writer(parquet):",
        new="if not footer.num_rows:",
        tests=(FOOTER_FORMS,),
    ),
    Fault(
        name="vectors-without-their-feature",
        breaks="deletion vectors stay in a table whose readers do not know them: deleted rows come back",
        file="airflow_txlog/engine/alteration/feature_changes.py",
        old='    "deletionVectors": _vectors,\n',
        new="",
        tests=(ALTER,),
    ),
    Fault(
        name="dropped-feature-rebased",
        breaks="the versions that a dropped feature protects end before its commit",
        file="airflow_txlog/jobs/operations/alter/job.py",
        old="never_rebases=found.protects_history",
        new="never_rebases=False",
        tests=(ALTER,),
    ),
    Fault(
        name="converted-files-taken-for-alike",
        breaks="a converted file has the columns of another file of its writer",
        file="airflow_txlog/jobs/operations/convert/file_facts.py",
        old="self.metadata == _metadata_of(parquet) and bool(self.schema.equals(parquet.schema))",
        new="self.metadata == _metadata_of(parquet)",
        tests=(CONVERT,),
    ),
    Fault(
        name="half-a-copy-cloned",
        breaks="a deep clone names a copy that was cut off",
        file="airflow_txlog/engine/upkeep/copied_files.py",
        old="return found is not None and _has_size(copy, found) and",
        new="return found is not None and",
        tests=(KILLED_CLONES,),
    ),
    Fault(
        name="clone-with-row-ids-of-its-source",
        breaks="rows of a clone have ids above its own mark, which it hands out again",
        file="airflow_txlog/engine/upkeep/clone.py",
        old="return msgspec.structs.replace(add, base_row_id=None, default_row_commit_version=None)",
        new="return add",
        tests=(CLONE,),
    ),
    Fault(
        name="clone-that-claims-work",
        breaks="a table that became a clone claims ranges whose rows are gone",
        file="airflow_txlog/engine/upkeep/clone.py",
        old="    for name in dropped:\n",
        new="    for name in ():\n",
        tests=(CLONE,),
    ),
    Fault(
        name="shallow-clone-of-vacuumed-files",
        breaks="a shallow clone names files that a vacuum has deleted",
        file="airflow_txlog/jobs/operations/clone.py",
        old="        if missing:\n",
        new="        if not missing:\n",
        tests=(CLONE,),
    ),
    Fault(
        name="dry-upkeep-that-rewrites",
        breaks="a dry run of an upkeep rewrites files and deletes them",
        file="airflow_txlog/jobs/operations/upkeep.py",
        old='        if self._described.dry_run:\n            left = "dry run"\n        elif',
        new="        if",
        tests=(UPKEEP,),
    ),
    Fault(
        name="dry-upkeep-that-cleans-the-log",
        breaks="a dry run of an upkeep deletes commits",
        file="airflow_txlog/jobs/operations/upkeep.py",
        old="if self._described.dry_run or not snapshot.table_properties.clean_expired_log or",
        new="if not snapshot.table_properties.clean_expired_log or",
        tests=(UPKEEP,),
    ),
    Fault(
        name="calls-of-the-hook-not-counted",
        breaks="the second call of a task counts as the first one, and its rows are not written",
        file="airflow_txlog/hooks/identity.py",
        old="_calls[this_try][table, method] += 1",
        new="_calls[this_try][table, method] = 1",
        tests=(TASK_ROWS,),
    ),
    Fault(
        name="spellings-of-a-table-share-a-number",
        breaks="a call on another spelling of a table counts as done, and its rows are not written",
        file="airflow_txlog/hooks/identity.py",
        old="{_short_digest(self.table)}-{self.number}",
        new="{self.number}",
        tests=(TASK_ROWS,),
    ),
    # --- identity columns -------------------------------------------------------------------------------------------
    Fault(
        name="values-at-the-mark",
        breaks="the first row of a commit gets the last value of the one before",
        file="airflow_txlog/engine/table/schema/identities.py",
        old="(self.mark - self.start) // self.step + 1)",
        new="(self.mark - self.start) // self.step)",
        tests=(IDENTITIES,),
    ),
    Fault(
        name="values-of-a-lost-race-kept",
        breaks="rows that lost a race are committed with the values of the winner's rows",
        file="airflow_txlog/jobs/source/handed_out.py",
        old="name in identities and identities[name].value(0) == value for",
        new="name in identities for",
        tests=(f"{IDENTITY_COLUMNS}::test_a_race_for_the_values_is_lost_and_the_rows_are_numbered_again",),
    ),
    Fault(
        name="inserts-of-a-lost-race-kept",
        breaks="a merge commits inserts with the values of the winner's rows",
        file="airflow_txlog/jobs/operations/merge/job.py",
        old='+ ("" if handed is None else handed.first_values(number))',
        new="",
        tests=(f"{IDENTITY_COLUMNS}::test_a_race_for_the_values_is_lost_and_the_rows_are_numbered_again",),
    ),
    Fault(
        name="mark-left-behind",
        breaks="a merge hands out values, and the next writer hands them out again",
        file="airflow_txlog/jobs/rows/pipeline.py",
        old="tx.move_marks(marks)",
        new="pass",
        tests=(f"{IDENTITY_COLUMNS}::test_merge_upsert_and_overwrites_number_the_rows_that_they_add",),
    ),
    Fault(
        name="values-of-another-column-reserved",
        breaks="rows get values that were reserved for another column of the name, and its mark stays behind them",
        file="airflow_txlog/jobs/source/handed_out.py",
        old="            self._reserved = None\n        if",
        new="            pass\n        if",
        tests=(f"{IDENTITY_COLUMNS}::test_reserved_values_are_not_those_of_a_column_that_takes_its_place",),
    ),
    # --- small files ------------------------------------------------------------------------------------------------
    Fault(
        name="small-files-of-two-partitions-joined",
        breaks="rows of small files get the partition values of a neighbour",
        file="airflow_txlog/datafiles/tasks/small_files.py",
        old=" or last[0].constants != planned.constants",
        new="",
        tests=(SMALL_FILES,),
    ),
    Fault(
        name="deleted-rows-of-small-files-read",
        breaks="rows that a deletion vector deletes come back",
        file="airflow_txlog/datafiles/tasks/small_files.py",
        old="if planned.deleted is None and planned.parts == 1 else None",
        new="if planned.parts == 1 else None",
        tests=(SMALL_FILES,),
    ),
    Fault(
        name="old-calendar-of-small-files",
        breaks="dates that an old Spark has written are read as other days",
        file="airflow_txlog/datafiles/tasks/small_files.py",
        old="is_plain = bool(names) and not calendar_of(parquet).is_legacy",
        new="is_plain = bool(names)",
        tests=(SMALL_FILES,),
    ),
    Fault(
        name="footer-form-of-any-text",
        breaks="a footer that no check has seen counts as checked",
        file="airflow_txlog/datafiles/parquet/footer_forms.py",
        old="elif path[:-1] == _OF_STATISTICS or (path == (_KEY_VALUES, _VALUE) and self._key == _PANDAS):",
        new="else:",
        tests=(SMALL_FILES,),
    ),
    Fault(
        name="in-place-beside-a-vector",
        breaks="an update doubles the rows of a file that now gets a deletion vector",
        file="airflow_txlog/jobs/rows/staging.py",
        old="imaging = {self._carries} if uses_deletion_vectors",
        new="imaging = {self._carries, self._in_place} if uses_deletion_vectors",
        tests=("tests/jobs/resume/test_in_place.py",),
    ),
    Fault(
        name="chunks-of-other-bytes",
        breaks="a copy of a damaged file has bytes of one column as another",
        file="airflow_txlog/datafiles/parquet/splicing.py",
        old="if self._values.pop(self._next) != self._found:",
        new="if self._values.pop(self._next) < 0:",
        tests=("tests/datafiles/tasks/test_in_place.py",),
    ),
    Fault(
        name="chunks-that-overlap",
        breaks="a file whose chunks overlap fails its update, whose rows could be read",
        file="airflow_txlog/datafiles/parquet/splicing.py",
        old="end <= start for end, start in",
        new="True for end, start in",
        tests=("tests/datafiles/tasks/test_in_place.py",),
    ),
    Fault(
        name="unread-object-passes",
        breaks="an object that cannot be read counts as one without a trace",
        file="airflow_txlog/engine/erasure/object_verdicts.py",
        old="    elif reason is not None:",
        new="    elif False:",
        tests=("tests/engine/erasure/test_find_traces.py",),
    ),
    Fault(
        name="dictionary-without-a-look",
        breaks="a value that only a dictionary still holds is not found",
        file="airflow_txlog/engine/erasure/column_chunks.py",
        old="in_dictionary |= _in_dictionary(",
        new="in_dictionary |= False and _in_dictionary(",
        tests=("tests/engine/erasure/test_find_traces.py",),
    ),
    Fault(
        name="dictionary-with-values-unread",
        breaks="a damaged column of texts, whose rows name no value of its dictionary, passes as searched",
        file="airflow_txlog/engine/erasure/parquet_traces.py",
        old="column.validate(full=True)",
        new="column.validate()",
        tests=("tests/engine/erasure/test_find_traces.py",),
    ),
    Fault(
        name="first-column-at-the-end",
        breaks="Spark reads no row of a file whose first column has changed in place",
        file="airflow_txlog/datafiles/parquet/splicing.py",
        old="is_first = 0 in self._splice.replaced",
        new="is_first = False",
        tests=("tests/datafiles/tasks/test_in_place.py",),
    ),
    Fault(
        name="whole-groups-beside-a-vector",
        breaks="a deleted row comes back with the row group that no other row leaves",
        file="airflow_txlog/datafiles/tasks/copies.py",
        old="split_groups(parquet, groups, [unpack(leaving), deleted])",
        new="split_groups(parquet, groups, [unpack(leaving)])",
        tests=("tests/datafiles/tasks/test_whole_groups.py",),
    ),
    Fault(
        name="whole-groups-of-another-form",
        breaks="a file has times in milliseconds that its footer declares as microseconds",
        file="airflow_txlog/datafiles/parquet/whole_groups.py",
        old="return splice if splice.has_form_of(_form(schema, options)) else None",
        new="return splice",
        tests=("tests/datafiles/tasks/test_whole_groups.py",),
    ),
    Fault(
        name="rows-that-leave-stay-in-place",
        breaks="a row that a merge deletes stays in the file",
        file="airflow_txlog/datafiles/tasks/in_place.py",
        old="planned.leaving is not None or planned.deleted is not None or planned.parts > 1",
        new="planned.deleted is not None or planned.parts > 1",
        tests=("tests/datafiles/tasks/test_in_place.py",),
    ),
    Fault(
        name="worn-file-in-two-bins",
        breaks="a file with deleted rows is clustered twice, by itself and with its cube",
        file="airflow_txlog/jobs/operations/optimize/cubes.py",
        old="    ids = pc.if_else(is_worn, None, ids)\n",
        new="",
        tests=(CUBES,),
    ),
    Fault(
        name="cube-of-other-columns",
        breaks="files that are clustered by other columns are rewritten by each run",
        file="airflow_txlog/jobs/operations/optimize/cubes.py",
        old="is_foreign = pc.or_(pc.fill_null(is_other, False), pc.and_(is_cube, pc.invert(is_same)))",
        new="is_foreign = pc.fill_null(is_other, False)",
        tests=(CUBES,),
    ),
    Fault(
        name="cubes-of-any-size-grow",
        breaks="one new file lets a whole clustered table be rewritten",
        file="airflow_txlog/jobs/operations/optimize/cubes.py",
        old=" or size >= GROWTH * total)",
        new=")",
        tests=(CUBES,),
    ),
    Fault(
        name="clustering-columns-without-statistics",
        breaks="a file lacks the bounds of a clustering column",
        file="airflow_txlog/engine/commit/content/clustering.py",
        old="return (*first, *_logical(missing, leaves, properties.table))",
        new="return tuple(first)",
        tests=(CLUSTERING,),
    ),
    # --- checks before the commit -----------------------------------------------------------------------------------
    Fault(
        name="dropped-rows-are-written",
        breaks="rows that expect_or_drop counts are in the table",
        file="airflow_txlog/datafiles/parquet/judging.py",
        old="        return rows.filter(pc.invert(dropped))",
        new="        return rows",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="lost-rows-of-tiny-files",
        breaks="rows that a fault loses when tiny files are copied into one are gone with the commit",
        file="airflow_txlog/jobs/rows/staging.py",
        old="if count is not None and found[segment] != count:",
        new="if count is not None and found[segment] > count:",
        tests=("tests/jobs/rows/test_joint_copies.py",),
    ),
    Fault(
        name="counts-of-another-segment",
        breaks="rows that are kept over a lost race are counted twice, or not",
        file="airflow_txlog/jobs/rows/missing_work.py",
        old="counts.setdefault(each.segment or 0, []).append(each)",
        new="counts.setdefault(0, []).append(each)",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="saved-before-it-is-checked",
        breaks="a job that fails a check leaves its files",
        file="airflow_txlog/jobs/rows/pipeline.py",
        old="        change = self._checked(tx, prepared, found, work)\n",
        new="        self._saved_work.save(memory)\n        change = self._checked(tx, prepared, found, work)\n",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="fraction-in-floating-point",
        breaks="a fraction that is reached exactly counts as exceeded",
        file="airflow_txlog/jobs/rows/checked_change.py",
        old="found > Fraction(str(most)) * total",
        new="found > most * total",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="unique-without-a-read",
        breaks="two appends of one key that race both land",
        file="airflow_txlog/jobs/rows/checked_change.py",
        old="scope.files_inside(tx.read(scope.read))",
        new="scope.files_inside(snapshot.files())",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="samples-without-whole-files",
        breaks="rows that leave with their whole file are missing in the samples",
        file="airflow_txlog/jobs/rows/dry_run.py",
        old="if row not in leaving and found < MOST_SAMPLES:",
        new="if row in leaving:",
        tests=(SAMPLES,),
    ),
    Fault(
        name="deleted-record-of-an-audit",
        breaks="a change that lost the record of one of its audits is published with the others",
        file="airflow_txlog/jobs/operations/publish.py",
        old="    if missing or not audits:",
        new="    if not audits:",
        tests=(REAUDITED,),
    ),
    Fault(
        name="samples-of-each-attempt",
        breaks="a dry run that plans again appends the samples of all its attempts",
        file="airflow_txlog/jobs/rows/other_table.py",
        old="    if context.takes_samples:\n        memory.forget()",
        new="    if False:\n        memory.forget()",
        tests=(SAMPLES,),
    ),
    Fault(
        name="samples-under-one-key",
        breaks="a dry run with other arguments under one idempotency key appends no samples",
        file="airflow_txlog/jobs/rows/other_table.py",
        old="    if context.is_dry_run and own.check_digest:\n",
        new="    if False:\n",
        tests=(SAMPLES,),
    ),
    Fault(
        name="quarantine-of-each-attempt",
        breaks="rows are in quarantine once for each try",
        file="airflow_txlog/jobs/rows/other_table.py",
        old="            application=_application(context),\n",
        new="",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="quarantine-of-the-work-before-a-clear",
        breaks="a cleared task's rows are not appended, because the number of its work is in the quarantine's log",
        file="airflow_txlog/jobs/rows/other_table.py",
        old='app_id=f"{own.app_id}/{_words(context)}/{work[:16]}"',
        new='app_id=f"{own.app_id}/{_words(context)}"',
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="quarantine-after-the-commit",
        breaks="a job that is killed between its two commits loses the rows in quarantine",
        file="airflow_txlog/jobs/resume/attempts.py",
        old="        if change.before_commit is not None:\n            change.before_commit()\n",
        new="",
        tests=(EXPECTATIONS,),
    ),
    Fault(
        name="range-after-another-watermark",
        breaks="a run that lost the race to another one of its consumer commits the same range again",
        file="airflow_txlog/jobs/operations/changes/incremental.py",
        old="                raise _Moved\n            change = plan(tx)",
        new="                pass\n            change = plan(tx)",
        tests=(INCREMENTS,),
    ),
    Fault(
        name="watermark-over-a-restore",
        breaks="an increment moves its watermark although a RESTORE has just taken the rows before it",
        file="airflow_txlog/engine/commit/conflicts.py",
        old='if marks and (winner.info or {}).get("operation") == "RESTORE":',
        new="if False:",
        tests=(INCREMENTS,),
    ),
    Fault(
        name="watermark-without-its-note",
        breaks="a consumer whose domain another engine dropped starts from the beginning",
        file="airflow_txlog/engine/upkeep/consumers.py",
        old="if watermark is None and is_noted:",
        new="if False:",
        tests=(INCREMENTS,),
    ),
    Fault(
        name="restore-without-watermarks",
        breaks="after a RESTORE the rows that it took are never processed again",
        file="airflow_txlog/engine/upkeep/restore.py",
        old="    for domain in rewound(head.state.domains, target.state.domains):\n",
        new="    for domain in ():\n",
        tests=(INCREMENTS,),
    ),
    Fault(
        name="files-that-come-back-are-new",
        breaks="a RESTORE of the source appends its old rows to the target again",
        file="airflow_txlog/engine/table/changes/ranges.py",
        old="if removed or commit.operation == _BRINGS_BACK:",
        new="if removed:",
        tests=(INCREMENTS,),
    ),
    Fault(
        name="one-reader-for-rows-and-change-rows",
        breaks="change rows of small files have no type",
        file="airflow_txlog/datafiles/tasks/small_files.py",
        old="reader = readers.get(given := frozenset(planned.constants))",
        new="given = frozenset(planned.constants)\n        reader = next(iter(readers.values()), None)",
        tests=(INCREMENTS,),
    ),
    Fault(
        name="made-again-and-not-audited",
        breaks="rows that no audit has seen are published after a conflict",
        file="airflow_txlog/jobs/operations/publish.py",
        old="    for audit in audits:\n        _audit(",
        new="    for audit in audits[1:]:\n        _audit(",
        tests=(REAUDITED,),
    ),
    Fault(
        name="a-failed-audit-refuses-nothing",
        breaks="the files of a change that failed its audit stay, because a task may be publishing it",
        file="airflow_txlog/jobs/operations/publish.py",
        old="        decide(context.store, id, REFUSED, error.message)\n",
        new="        decide(context.store, id, PUBLISH, error.message)\n",
        tests=(REAUDITED,),
    ),
    Fault(
        name="another-process-adds-an-audit",
        breaks="SQL of whoever may write the table's folder runs with the credentials of the publication",
        file="airflow_txlog/jobs/resume/unpublished.py",
        old="if not seal.is_signed(_AUDIT_KIND",
        new="if not seal and seal.is_signed(_AUDIT_KIND",
        tests=(REAUDITED,),
    ),
    Fault(
        name="key-behind-the-last-place",
        breaks="a merge of whole numbers fails at a key just above those of its source",
        file="airflow_txlog/datafiles/tasks/key_rows.py",
        old="pc.greater_equal(numbers, len(places))",
        new="pc.greater(numbers, len(places))",
        tests=(KEY_ROWS,),
    ),
    Fault(
        name="equal-keys-share-a-place",
        breaks="of two source rows with one key, a merge finds only one",
        file="airflow_txlog/datafiles/deletion_vectors/positions.py",
        old="if found is None or len(found) - found.null_count < len(values) - values.null_count:",
        new="if found is None:",
        tests=(KEY_ROWS,),
    ),
    Fault(
        name="spare-values-stay-in-a-dictionary",
        breaks="a copied file has deleted values, and rows with the values of others",
        file="airflow_txlog/datafiles/parquet/output.py",
        old="        dictionary = dictionary.filter(is_used)\n",
        new="",
        tests=(USED_VALUES,),
    ),
    Fault(
        name="pairs-in-any-order-are-not-sorted",
        breaks="a merge updates other rows than those that it found",
        file="airflow_txlog/datafiles/deletion_vectors/positions.py",
        old="if not _ascend(addresses):",
        new="if False:",
        tests=(FOUND_ROWS,),
    ),
    Fault(
        name="no-clause-acts-on-a-row-without-a-key",
        breaks="a merge deletes or updates a row of the table that no condition names",
        file="airflow_txlog/datafiles/tasks/key_rows.py",
        old="yield alone.filter(alone.column(2).is_valid())",
        new="yield alone",
        tests=(KEY_ROWS,),
    ),
    Fault(
        name="places-of-numbers-far-apart",
        breaks="two keys that lie far apart take all memory",
        file="airflow_txlog/datafiles/deletion_vectors/positions.py",
        old="if least is None or greatest - least >= most:",
        new="if least is None:",
        tests=(KEY_ROWS,),
    ),
    Fault(
        name="pairs-of-several-tasks-are-not-sorted",
        breaks="a merge updates other rows than those that it found, if several tasks found rows of one file",
        file="airflow_txlog/datafiles/deletion_vectors/positions.py",
        old="if not _ascend(whole(ordered.column(POSITION))):",
        new="if False:",
        tests=(FOUND_ROWS,),
    ),
    Fault(
        name="position-beyond-32-bits",
        breaks="a row that no file has is taken for one of its first rows",
        file="airflow_txlog/datafiles/deletion_vectors/positions.py",
        old="if max(positions[-1].as_py(), pc.max(ordinals).as_py() or 0) > MAX_POSITION:",
        new="if False:",
        tests=(FOUND_ROWS,),
    ),
    Fault(
        name="computed-value-is-a-number-of-a-task",
        breaks="an update whose first value Spark computes as -9 ends in an IndexError",
        file="airflow_txlog/jobs/files/scan.py",
        old="if isinstance(values, SentColumns):",
        new="if False:",
        tests=(COMPUTED_VALUES,),
    ),
    Fault(
        name="file-without-rows-needs-a-mark",
        breaks="a table with row ids whose first file has no rows can never be written again",
        file="airflow_txlog/engine/commit/content/row_tracking.py",
        old="if any(most_rows(text, vectors.get(number)) != 0 for",
        new="if any(True for",
        tests=(ROW_TRACKING,),
    ),
)
