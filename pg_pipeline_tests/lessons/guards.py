"""The guards of the protocol, how to take each out, and the test that must then fail."""

from __future__ import annotations

from dataclasses import dataclass

_RACES = "pg_pipeline_tests/races/"
_CRASH = "pg_pipeline_tests/crash/"
_CORE = "pg_pipeline_tests/coordination/"
_STORAGE = "pg_pipeline_tests/storage/"
_SECURITY = "pg_pipeline_tests/security/"
_LESSONS = "pg_pipeline_tests/lessons/test_lessons.py::"


@dataclass(frozen=True)
class Guard:
    """`cuts` are (file, what stands there, what stands there without the guard)."""

    name: str
    test: str
    cuts: tuple[tuple[str, str, str], ...]


def _guard(name: str, test: str, *cuts: tuple[str, str, str]) -> Guard:
    return Guard(name, test, cuts)


_FINISH, _SEND, _LETTER = "sql/functions/finish.sql", "sql/functions/send.sql", "sql/functions/dead_letter.sql"
_BARRIER, _CLAIM, _SUBMIT = "sql/functions/barrier.sql", "sql/functions/claim.sql", "sql/functions/submit.sql"
_BEAT, _REAP, _SHARED = "sql/functions/worker.sql", "sql/functions/reaper.sql", "sql/functions/_shared.sql"
_PYTHON = "pg_pipeline/coordination/"
_ONE_TRANSACTION = (
    _PYTHON + "database.py",
    "            with conn.transaction():\n                return work(conn)",
    "            return work(conn)",
)

GUARDS = (
    _guard(
        "the lock before the snapshot, in what reads a table that is compacted",
        _RACES + "test_compaction_races.py::test_whoever_meets_a_compaction_waits_and_finds_all_as_it_was",
        ("sql/functions/audit.sql", "language sql volatile", "language sql stable"),
    ),
    _guard(
        "the refusal of a snapshot from before a compaction",
        _RACES + "test_compaction_races.py::test_a_snapshot_from_before_a_compaction_is_told_that_it_is_too_old",
        (_SHARED, "and not pg_visible_in_snapshot(v_by, pg_current_snapshot())", "and false"),
    ),
    _guard(
        "the timeout of a compaction that waits for the table",
        _RACES + "test_compaction_races.py::test_p10_compaction_is_never_the_third_in_a_circle",
        ("sql/functions/compact.sql", "set lock_timeout = '100ms'\n", ""),
    ),
    _guard(
        "the token in a finish",
        _RACES + "test_claim_races.py::test_p3_a_finish_that_waited_for_the_thief_is_told_that_it_lost",
        (_FINISH, "on t.id = g.task and t.token = g.token\n", "on t.id = g.task\n"),
        (_FINISH, "on g.task = t.id and g.token = t.token\n", "on g.task = t.id\n"),
    ),
    _guard(
        "the transaction around publish, result and ack",
        _CRASH + "test_deaths.py::test_p2_rows_published_but_not_committed_are_never_visible",
        _ONE_TRANSACTION,
    ),
    _guard(
        "the transaction around the fan-out",
        _CRASH + "test_deaths.py::test_lesson_d4_a_submit_of_many_batches_is_there_whole_or_not_at_all",
        _ONE_TRANSACTION,
    ),
    _guard(
        "the transaction around done and its commit",
        _CRASH + "test_deaths.py::test_lesson_d1_nothing_says_done_before_the_finish_commits",
        _ONE_TRANSACTION,
    ),
    _guard(
        "the transaction that a failing settlement rolls back",
        _LESSONS + "test_lesson_d5_a_failure_while_settling_rolls_everything_back_and_is_tried_again",
        _ONE_TRANSACTION,
    ),
    _guard(
        "the unique keys of the outbox",
        _LESSONS + "test_lesson_a4_the_database_refuses_a_second_row_of_anything_that_must_be_one",
        (
            "sql/migrations/0002_core.sql",
            "text not null unique,   -- the idempotency key",
            "text not null,  -- the idempotency key",
        ),
        (_BARRIER, "  on conflict (key) do nothing;\n", ";\n"),
    ),
    _guard(
        "whose task a dead letter was",
        _CORE + "test_barrier.py::test_c1_a_poisoned_callback_shows_whose_it_is",
        (_LETTER, "v_lane.tenant, p_task.execution_id,\n", "v_lane.tenant, null,\n"),
    ),
    _guard(
        "taking back the tasks of workers that are gone, in the claim",
        _CRASH + "test_deaths.py::test_lesson_a7_the_work_of_a_dead_worker_is_claimable_without_any_restart_or_sweep",
        (_CLAIM, "    perform pipeline._take_back(v_worker.queue, 100);  -- and look again\n", ""),
    ),
    _guard(
        "the stored answer of a finish",
        _CRASH
        + "test_deaths.py::test_lesson_a3_after_finish_commits_asking_again_with_the_token_returns_the_stored_result",
        (_FINISH, "  select case a.outcome when 'fenced' then 'lost' else a.outcome end,\n", "  select 'lost',\n"),
    ),
    _guard(
        "the memory that a zombie came back",
        _CRASH + "test_zombies.py::test_p3_a_zombie_that_wakes_up_gets_lease_lost_and_is_remembered_as_fenced",
        (_FINISH, "  update pipeline.attempt set outcome = 'fenced' where token = p_token and outcome = 'lost';\n", ""),
    ),
    _guard(
        "the bound on idling inside a finish",
        _CRASH + "test_zombies.py::test_p10_a_finish_and_a_submit_that_idle_are_bounded_by_themselves",
        (_SHARED, "  if v_now = '0' or v_now > p_limit then\n", "  if false then\n"),
    ),
    _guard(
        "expiry that counts from the server's start",
        _CRASH + "test_postgres.py::test_a_restart_of_postgres_does_not_look_like_dead_workers[kill_backend]",
        (_SHARED, "  return greatest(v_seen, pg_postmaster_start_time());\n", "  return '-infinity';\n"),
    ),
    _guard(
        "the handing back of attempts that failed",
        _CORE + "test_finish.py::test_lesson_a2_a_failed_task_is_tried_again_and_its_error_kept",
        (_FINISH, "  elsif p_retryable and v_task.attempts < v_task.max_attempts then\n", "  elsif false then\n"),
    ),
    _guard(
        "the account of every file of a batch",
        _CORE + "test_finish.py::test_lesson_a8_every_file_of_a_batch_is_accounted_for",
        (_FINISH, "then jsonb_array_length(f.value) <> b.files else true", "then false else false"),
    ),
    _guard(
        "the burial of malformed work",
        _CORE + "test_claim.py::test_a5_malformed_work_becomes_a_dead_letter_at_once",
        (_CLAIM, "      perform pipeline._bury(v_task, 'malformed', null, v_bad.flaw);\n", "      null;\n"),
    ),
    _guard(
        "insert or nothing, in a send",
        _CORE + "test_send.py::test_lesson_b2_a_retry_never_recreates_what_was_consumed_since",
        (_SEND, "r.queue = p_queue and r.key = e.key\n", "r.queue = p_queue and r.key = e.key and false\n"),
        (
            _SEND,
            "from first_of_key f order by f.key\n    on conflict do nothing",
            "from first_of_key f order by f.key\n    on conflict (queue, key) do update set task_id = excluded.task_id",
        ),
    ),
    _guard(
        "receipts before validation",
        _CORE + "test_send.py::test_lesson_b3_a_stored_entry_is_reported_as_stored_after_a_limit_was_tightened",
        (_SEND, "from entry e where e.n not in (select n from known)", "from entry e"),
        (
            _SEND,
            "      when k.same then 'duplicate'\n",
            "      when c.refusal is not null then 'rejected'\n      when k.same then 'duplicate'\n",
        ),
    ),
    _guard(
        "readers that leave alone what they don't know",
        _LESSONS + "test_lesson_b4_the_previous_release_works_on_a_schema_that_has_more",
        (_PYTHON + "worker.py", "made(Lease, row)", "Lease(**row)"),
    ),
    _guard(
        "asking once more on a dead reused connection",
        _CRASH + "test_lost_answers.py::test_lesson_c2_a_reused_connection_that_died_is_asked_again_by_itself[finish]",
        (_PYTHON + "database.py", "if not (reused and conn.broken):", "if True:"),
    ),
    _guard(
        "asking only once more",
        _CRASH + "test_lost_answers.py::test_lesson_c2_it_is_asked_again_once_and_a_second_failure_is_raised",
        (
            _PYTHON + "database.py",
            "with self._borrow(fresh=True) as (conn, _):\n            try:\n                return work(conn)\n",
            "with self._borrow(fresh=True) as (conn, _):\n            try:\n                return work(conn)\n"
            "            except psycopg.OperationalError:\n                return self._once_more(work)\n",
        ),
    ),
    _guard(
        "the error that a stopping worker swallows",
        _CRASH + "test_deaths.py::test_lesson_c3_a_worker_that_can_not_say_good_bye_costs_only_the_lease_time",
        (
            _PYTHON + "worker.py",
            'suppress(psycopg.Error, PgPipelineError):\n            self._db.rows("select pipeline.stop_worker',
            'suppress(KeyError):\n            self._db.rows("select pipeline.stop_worker',
        ),
    ),
    _guard(
        "the heartbeat",
        _LESSONS + "test_lesson_c4_a_task_that_takes_longer_than_its_lease_is_not_redelivered",
        (_PYTHON + "heartbeat.py", "                relock = not self._beat(relock)\n", ""),
    ),
    _guard(
        "the look at the execution under its lock",
        _RACES + "test_barrier_races.py::test_a_finish_that_waited_for_a_cancel_shows_nothing",
        (_FINISH, "  if v_ended is not null then\n", "  if false then\n"),
    ),
    _guard(
        "the history of live executions",
        _LESSONS + "test_lesson_c5_what_retention_forgets_does_not_run_again",
        (
            _REAP,
            "x where x.id = a.execution_id and x.state in ('open', 'sealed'))\n      and not exists",
            "x where false)\n      and not exists",
        ),
    ),
    _guard(
        "the outbox rows of an early end",
        _CORE + "test_barrier.py::test_c7_cancel_and_deadline_tell_the_world_once",
        (_BARRIER, "  perform pipeline._tell(p_execution_id, p_state, jsonb_build_object('reason', p_reason));\n", ""),
    ),
    _guard(
        "the barrier's decrement under the execution's lock",
        _RACES + "test_barrier_races.py::test_lesson_c8_batches_that_settle_at_the_same_moment_fire_one_callback",
        (_FINISH, "any (v_executions) order by x.id for update;\n", "any (v_executions) order by x.id;\n"),
        (
            _FINISH,
            "    settled = x.settled + s.batches,\n",
            "    settled = (select e.settled from pipeline.execution e where e.id = x.id) + s.batches,\n",
        ),
    ),
    _guard(
        "the generation in a finish",
        _RACES + "test_barrier_races.py::test_p3_a_batch_of_the_generation_before_can_not_finish_into_the_next",
        (_FINISH, "x.state in ('open', 'sealed') and x.generation = t.generation\n", "x.state in ('open', 'sealed')\n"),
    ),
    _guard(
        "the callback made with barrier zero",
        _CRASH + "test_deaths.py::test_lesson_d3_there_is_nothing_between_barrier_zero_and_the_callback",
        (_FINISH, "    if pipeline._barrier_reached(v_id) then\n", "    if false then\n"),
    ),
    _guard(
        "the constraints on numbers",
        _CORE + "test_barrier.py::test_d7_negative_counts_are_refused_by_the_tables",
        (
            "sql/migrations/0002_core.sql",
            "  settled             int not null default 0 check (settled >= 0),\n",
            "  settled             int not null default 0,\n",
        ),
        (
            "sql/migrations/0002_core.sql",
            "(expected - settled) stored check (remaining >= 0)",
            "(expected - settled) stored",
        ),
        (
            "sql/migrations/0002_core.sql",
            "  expected            int not null default 0 check (expected >= 0),\n",
            "  expected            int not null default 0,\n",
        ),
    ),
    _guard(
        "the tenant and priority of a callback",
        _CORE + "test_barrier.py::test_d8_the_callback_carries_the_tenant_and_the_priority",
        (
            _BARRIER,
            "'callback', v_execution.priority, v_execution.tenant);\n",
            "'callback', 0::smallint, '');\n",
        ),
    ),
    _guard(
        "a run that is red when a test did not run",
        _LESSONS + "test_lesson_d10_a_test_that_did_not_run_is_a_failure",
        (
            "pg_pipeline_tests/not_run.py",
            "        session.exitstatus = pytest.ExitCode.TESTS_FAILED\n",
            "        pass\n",
        ),
    ),
    _guard(
        "the row lock of a replay",
        _RACES + "test_dead_letter_races.py::test_lesson_e1_the_second_replay_is_seen_waiting_and_then_finds_no_letter",
        (
            _LETTER,
            "where id = p_letter and resolution is null for update;",
            "where id = p_letter and resolution is null;",
        ),
    ),
    _guard(
        "skip locked in a replay of many",
        _RACES + "test_dead_letter_races.py::test_lesson_e2_replay_all_passes_over_what_a_replay_holds",
        (_LETTER, "    limit p_limit for update skip locked\n", "    limit p_limit for update\n"),
    ),
    _guard(
        "the whole task in a dead letter",
        _CORE + "test_dead_letters.py::test_lesson_e3_a_letter_keeps_the_whole_task_its_error_and_its_history",
        (_LETTER, "p_task.key, p_task.payload,\n", "p_task.key, null,\n"),
    ),
    _guard(
        "skip locked in a claim",
        _RACES + "test_claim_races.py::test_p3_a_finish_that_holds_its_task_can_not_be_robbed",
        (_CLAIM, "    limit p_limit for update of t skip locked\n", "    limit p_limit\n"),
    ),
    _guard(
        "the beat that waits for no task",
        _RACES + "test_claim_races.py::test_a_finish_that_holds_its_task_does_not_stall_the_heartbeat",
        (_BEAT, "    order by t.claimed_at for update skip locked\n", "    order by t.claimed_at for update\n"),
    ),
    _guard(
        "the beat that knows when it was made",
        _RACES + "test_claim_races.py::test_a_beat_under_way_does_not_hand_back_what_was_claimed_since",
        (_BEAT, " and t.claimed_at < p_listed_after\n", "\n"),
    ),
    _guard(
        "the ledger's key order",
        _RACES + "test_submit_races.py::test_p2_files_go_in_in_the_order_of_their_keys",
        (_SUBMIT, "path, version from cut order by key\n", "path, version from cut order by n\n"),
    ),
    _guard(
        "the ledger's lock around chunks",
        _RACES + "test_submit_races.py::test_p2_chunked_submits_against_small_ones",
        (_PYTHON + "submission.py", "    if second is not None:\n", "    if False:\n"),
    ),
    _guard(
        "the lanes' order in a send",
        _RACES + "test_submit_races.py::test_sends_for_new_tenants_in_opposite_order_don_t_deadlock",
        (_SEND, "from placed order by 1, 2, 3, 4) d\n", "from placed order by md5(p_entries::text || tenant)) d\n"),
    ),
    _guard(
        "the output that is discarded only after its attempt has ended",
        _CRASH + "test_deaths.py::test_p3_the_output_of_an_attempt_is_discarded_only_after_a_transaction_ended_it",
        (
            _REAP,
            "  from pipeline.attempt_output o join pipeline.attempt a on a.token = o.token\n  left join",
            "  from pipeline.attempt_output o left join pipeline.attempt a on a.token = o.token\n  left join",
        ),
        (_REAP, "  where a.outcome <> 'committed' and", "  where a.outcome is distinct from 'committed' and"),
    ),
    _guard(
        "the lock of whoever makes a task ready",
        _RACES + "test_floor_races.py::test_p1_a_task_that_is_committed_after_the_floor_moved_is_claimed",
        (_SHARED, "  perform pg_advisory_xact_lock_shared(7023, p_lane % 64);  -- few locks, however many lanes\n", ""),
    ),
    _guard(
        "a floor that does not pass what is being handed back",
        _RACES + "test_floor_races.py::test_p1_a_task_that_is_handed_back_while_the_floor_moves_is_claimed",
        (_SHARED, "    continue when not pg_try_advisory_xact_lock(7023, p_lanes[i] % 64);\n", ""),
    ),
    _guard(
        "ready by the clock, not by the start of the transaction",
        _RACES + "test_floor_races.py::test_p1_a_transaction_that_began_before_the_floor_moved_sends_above_it",
        (
            _SHARED,
            "return greatest(clock_timestamp(), (select floor from pipeline.lane where id = p_lane));",
            "return now();",
        ),
    ),
    _guard(
        "a worker's floor that does not pass a claim under way",
        _RACES + "test_floor_races.py::test_p1_a_claim_under_way_is_not_passed_by_the_floor_of_its_worker",
        (_BEAT, "  if pg_try_advisory_xact_lock(hashtextextended(p_worker::text, 2)) then\n", "  if true then\n"),
    ),
    _guard(
        "the pinned search path",
        _SECURITY + "test_attacks.py::test_a_function_or_operator_in_a_callers_search_path_is_never_ours",
        (
            _SEND,
            "returns table (ordinal int, key text, outcome text, task_id bigint, reason text)\n"
            "language plpgsql volatile security definer\nset search_path = pg_catalog, pg_temp\n",
            "returns table (ordinal int, key text, outcome text, task_id bigint, reason text)\n"
            "language plpgsql volatile security definer\n",
        ),
    ),
    _guard(
        "the temporary schema at the end of the path",
        _SECURITY + "test_attacks.py::test_a_type_of_the_temporary_schema_is_never_ours",
        (
            _SUBMIT,
            "  p_released boolean default false\n) returns jsonb\nlanguage plpgsql volatile security definer\n"
            "set search_path = pg_catalog, pg_temp\nas $$\ndeclare\n  v_fingerprint",
            "  p_released boolean default false\n) returns jsonb\nlanguage plpgsql volatile security definer\n"
            "set search_path = pg_catalog\nas $$\ndeclare\n  v_fingerprint",
        ),
    ),
    _guard(
        "the token in a fail",
        _SECURITY + "test_attacks.py::test_a_forged_token_finishes_fails_and_releases_nothing",
        (
            _FINISH,
            "  v_letter bigint;\nbegin\n  select * into v_task from pipeline.task "
            "where id = p_task and token = p_token for",
            "  v_letter bigint;\nbegin\n  select * into v_task from pipeline.task where id = p_task for",
        ),
    ),
    _guard(
        "the columns that readers do not see",
        _SECURITY + "test_attacks.py::test_nobody_can_read_the_token_of_a_living_lease_anywhere[pipeline_submitter]",
        ("sql/grants.sql", "array['task', 'outbox', 'attempt_output'] loop", "array['task', 'outbox'] loop"),
    ),
    _guard(
        "the hash in the names of staging tables",
        _SECURITY + "test_attacks.py::test_nobody_can_read_the_token_of_a_living_lease_anywhere[pipeline_reader]",
        (
            _PYTHON + "types.py",
            "hashlib.sha256(self.token.bytes).hexdigest()[:32]",
            "self.token.hex + hashlib.__name__[:0]",
        ),
    ),
    _guard(
        "the grants by role",
        _SECURITY + "test_matrix.py::test_each_role_can_call_its_doors_and_is_refused_at_every_other[pipeline_reader]",
        ("sql/grants.sql", "'metrics', 'worker_health',", "'metrics', 'pause', 'worker_health',"),
    ),
    _guard(
        "no role that writes a table",
        _SECURITY + "test_matrix.py::test_each_role_can_read_what_it_may_and_write_nothing[pipeline_worker]",
        (
            "sql/grants.sql",
            "grant select on all tables in schema pipeline to pipeline_reader;\n",
            "grant select on all tables in schema pipeline to pipeline_reader;\n"
            "grant update on pipeline.task to pipeline_worker;\n",
        ),
    ),
    _guard(
        "staging that belongs to the role",
        _SECURITY + "test_attacks.py::test_what_one_login_staged_another_can_discard_and_strangers_can_not",
        ("pg_pipeline/sinks/copying.py", "select set_config('role', 'pipeline_worker', true)", "select 1"),
    ),
    _guard(
        "the address that is checked and connected to in one step",
        _SECURITY + "test_webhooks.py::test_a_name_that_moves_between_look_and_connection_gains_nothing[127.0.0.1]",
        (
            _PYTHON + "webhook.py",
            "                for *_, address in found:\n",
            "                for *_, address in socket.getaddrinfo(host, connection.port, type=socket.SOCK_STREAM):\n",
        ),
    ),
    _guard(
        "the IPv4 address inside an IPv6 one",
        _SECURITY
        + "test_webhooks.py::test_an_address_inside_the_network_is_refused_however_it_is_written[[2002:7f00:1::]]",
        (_PYTHON + "webhook.py", "    ip = public_form(ipaddress", "    ip = (ipaddress"),
    ),
    _guard(
        "redirects that are not followed",
        _SECURITY + "test_webhooks.py::test_a_redirect_is_not_followed",
        (_PYTHON + "webhook.py", "allow_redirects=False", "allow_redirects=True"),
    ),
    _guard(
        "the certificate that is verified",
        _SECURITY + "test_webhooks.py::test_a_certificate_that_nobody_vouches_for_is_refused",
        (_PYTHON + "webhook.py", 'os.environ.get("REQUESTS_CA_BUNDLE") or True', "False"),
    ),
    _guard(
        "the address that an error does not name",
        _SECURITY + "test_secrets.py::test_no_secret_is_in_what_a_run_leaves_behind",
        (_PYTHON + "webhook.py", "        return _said(error)\n", '        return f"{url}: {error}"\n'),
    ),
    _guard(
        "the password that is named and not written",
        _SECURITY + "test_secrets.py::test_no_secret_is_in_what_a_run_leaves_behind",
        (
            "pg_pipeline/resources/instance.py",
            '{"env": PASSWORD} if parts.get("password") else ""',
            'parts.get("password", "") or PASSWORD[:0]',
        ),
    ),
    _guard(
        "the links that landing does not follow",
        _SECURITY + "test_files.py::test_a_landing_folder_full_of_traps_is_listed_once_and_soon",
        (
            "pg_pipeline/storage/local.py",
            "not item.is_symlink() and",
            'item.name not in ("one", "two") and',
        ),
    ),
    _guard(
        "the roots, at a submit",
        _SECURITY + "test_files.py::test_a_submit_from_outside_the_roots_is_refused",
        ("pg_pipeline/pipelines/landing.py", "pipeline.allowed_roots):", "()):"),
    ),
    _guard(
        "the roots, in a reader",
        _SECURITY + "test_files.py::test_what_is_no_file_below_the_roots_is_set_aside_by_both_readers[arrow]",
        ("pg_pipeline/spark/files.py", "    if not is_inside(path, roots):\n", "    if False:\n"),
    ),
    _guard(
        "the bound on what a file unpacks to",
        _SECURITY + "test_readers.py::test_a_small_file_that_unpacks_without_end_is_set_aside[bomb.json.gz]",
        ("pg_pipeline/spark/files.py", "        if self._read > self._limit:\n", "        if False:\n"),
    ),
    _guard(
        "the bound on what a file's rows take",
        _SECURITY + "test_readers.py::test_rows_that_take_more_than_their_file_are_counted_too",
        (
            "pg_pipeline/spark/arrow_reader.py",
            "                if size > plan.max_file_bytes:\n",
            "                if False:\n",
        ),
    ),
    _guard(
        "the expression that does not backtrack",
        _SECURITY + "test_readers.py::test_content_made_to_hurt_is_judged_in_linear_time[blank.json-data5-bad_lines]",
        ("pg_pipeline/spark/arrow_json.py", 'rb"\\n[ \\t\\r]*n"', 'rb"\\n[ \\t\\r\\n]*n"'),
    ),
    _guard(
        "the verdict on numbers of a million digits",
        _SECURITY + "test_readers.py::test_content_made_to_hurt_is_judged_in_linear_time[digits.json-data3-bad_lines]",
        ("pg_pipeline/spark/arrow_json.py", "        if len(value) > 20:", "        if False:"),
    ),
    _guard(
        "folders that are walked without recursion",
        _SECURITY + "test_files.py::test_folders_deeper_than_python_recurses_are_listed",
        (
            "pg_pipeline/storage/local.py",
            "                waiting.append((path, iter(_names(place))))\n",
            "                yield from walk(place)\n",
        ),
    ),
    _guard(
        "the etag, before and after a file is read",
        _STORAGE + "test_contract.py::test_a_file_of_the_same_size_is_another_version[s3]",
        ("pg_pipeline/spark/files.py", "now.etag is None or version.strip('\"') == now.etag", "True"),
    ),
    _guard(
        "the refusal of credentials in a URL",
        _STORAGE + "test_contract.py::test_urls_have_one_spelling_and_no_secrets",
        ("pg_pipeline/storage/urls.py", "    if at and (", "    if False and ("),
    ),
    _guard(
        "the roots, for what is announced",
        _STORAGE + "test_arrival.py::test_keys_are_data_and_lead_nowhere_else",
        ("pg_pipeline/pipelines/arrival.py", "    if not is_inside(one.path, places):\n", "    if False:\n"),
    ),
    _guard(
        "the later of two versions that are announced",
        _STORAGE + "test_arrival.py::test_of_one_group_the_latest_version_counts",
        ("pg_pipeline/pipelines/arrival.py", "known is None or (known.order", "True or (known.order"),
    ),
    _guard(
        "the acknowledgement that waits for the submission",
        _STORAGE + "test_arrival.py::test_p6_a_message_is_acknowledged_when_its_files_are_durable",
        (
            "pg_pipeline/pipelines/sqs.py",
            "        received = submit_events(",
            "        queue.acknowledge(messages)\n        received = submit_events(",
        ),
    ),
    _guard(
        "what is not opened because it is no file",
        _SECURITY + "test_files.py::test_a_device_is_not_read_where_there_are_no_roots_either[arrow]",
        ("pg_pipeline/storage/roots.py", "    if not stat.S_ISREG(mode):\n", "    if stat.S_ISSOCK(mode):\n"),
    ),
)
