-- The whole protocol from psql alone: run it with `psql -f docs/protocol.sql "$PG_PIPELINE_DSN"` on a migrated
-- database of your own (it registers a pipeline and a queue named psql_demo). The tests run it too.
\set ON_ERROR_STOP on
\pset footer off

\echo '1. A queue, a pipeline, and a submission of three files in batches of two.'
select pipeline.configure_queue('psql_demo', '{"backoff_base": "0 s", "max_attempts": 2}');
select pipeline.register_pipeline('psql_demo', '{"queue": "psql_demo", "policy": "strict", "batch_files": 2}');
select pipeline.submit('psql_demo', 'delivery-1', '{/in/a.json,/in/b.json,/in/c.json}', '{1,1,1}', '{10,20,30}') as answer \gset
select :'answer'::jsonb->>'execution' as execution, :'answer'::jsonb->>'batches' as batches \gset
\echo Execution :execution has :batches batches.

\echo '2. Asking twice is asking once: the same execution comes back.'
select (pipeline.submit('psql_demo', 'delivery-1', '{/in/a.json,/in/b.json,/in/c.json}', '{1,1,1}', '{10,20,30}')->>'execution')
       = :'execution' as same_execution \gset
\echo The same execution: :same_execution

\echo '3. A worker. Its id is new; the last argument says that no session lock stands for its life.'
select gen_random_uuid() as worker \gset
select pipeline.register_worker(:'worker', 'psql_demo', 'psql', null, null, null, false);

\echo '4. It claims a batch, looks at its files, and fails for good: a dead letter, and the execution is blocked.'
select task_id, token, execution_id, batch from pipeline.claim(:'worker', gen_random_uuid()) \gset
select path from pipeline.batch_files(:execution_id, :batch);
select pipeline.fail(:task_id, :'token', 'ValueError', 'a column is missing', false)->>'dead_letter' as letter \gset
select status from pipeline.execution_status where execution = :'execution' \gset
\echo Dead letter :letter, and the execution is :status
select what, detail, next_step from pipeline.explain(:'execution');

\echo '5. The dead don''t write: the failed attempt''s token commits nothing.'
select outcome as late_finish from pipeline.finish(array[:task_id]::bigint[], array[:'token']::uuid[], array['{}']::jsonb[]) \gset
\echo Its finish is answered with what it came to: :late_finish

\echo '6. The cause is mended: replay. Of two replays, one wins.'
select pipeline.replay(:letter)->>'resolution' as resolution \gset
\echo Dead letter :letter is :resolution

\echo '7. Both batches, claimed and finished in one transaction each. In `begin … commit` with your own writes, they are one.'
begin;
select array_agg(task_id) as tasks, array_agg(token) as tokens from pipeline.claim(:'worker', gen_random_uuid(), 10) \gset
commit;
begin;
select task_id, outcome, callback from pipeline.finish(:'tasks', :'tokens',
  array['{"rows_in": 9, "rows_out": 8}', '{"rows_in": 4, "rows_out": 4, "quarantined": [{"ordinal": 0, "reason": "corrupt"}]}']::jsonb[]);
commit;

\echo '8. The barrier is at zero: the callback is a task like any other, and its finish ends the execution.'
select task_id, token, kind from pipeline.claim(:'worker', gen_random_uuid()) \gset
select outcome from pipeline.finish(array[:task_id]::bigint[], array[:'token']::uuid[], array['{"summary": {"rows": 12}}']::jsonb[]);
select status, rows_out, quarantined, summary from pipeline.execution_status where execution = :'execution';

\echo '9. Every attempt is kept, and the audit finds nothing.'
select kind, batch, number, outcome from pipeline.attempt_status where execution = :'execution' order by claimed_at, batch;
select count(*) as violations from pipeline.audit(:'execution') \gset
\echo Violations: :violations

\echo '10. A re-run is a new generation: the old rows stay until the new ones replace them.'
select pipeline.rerun(:'execution')->>'generation' as generation \gset
select pipeline.cancel(:'execution', 'only to show it')->>'state' as state \gset
\echo Generation :generation is :state; what was committed before stays.
select pipeline.stop_worker(:'worker') as leases_handed_back;
