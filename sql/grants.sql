-- Who may call what: the whole matrix in one place. Tables are written only through functions.
set local role pipeline_owner;

revoke all on all tables in schema pipeline from public, pipeline_reader, pipeline_submitter, pipeline_worker, pipeline_operator;
revoke all on all functions in schema pipeline from public, pipeline_reader, pipeline_submitter, pipeline_worker, pipeline_operator;

grant select on all tables in schema pipeline to pipeline_reader;

-- The token of a living lease is its worker's secret: whoever reads it could finish the work of another.
do $$
declare
  v_table text;
begin
  foreach v_table in array array['task', 'outbox', 'attempt_output'] loop
    execute format('revoke select on pipeline.%I from pipeline_reader', v_table);
    execute (
      select format('grant select (%s) on pipeline.%I to pipeline_reader', string_agg(quote_ident(a.attname), ', ' order by a.attnum), v_table)
      from pg_catalog.pg_attribute a
      where a.attrelid = format('pipeline.%I', v_table)::regclass and a.attnum > 0 and not a.attisdropped
        and a.attname not in ('token', 'claim_id', 'location'));
  end loop;
end
$$;

do $$
declare
  v_grant record;
  v_found int;
begin
  for v_grant in
    select * from (values
      ('pipeline_reader',    array['audit', 'explain', 'file_key', 'executions', 'dead_letters', 'show_dead_letter', 'quarantined_files', 'metrics', 'worker_health', 'health_limit',
                                      'parquet_files']),
      ('pipeline_reader',    array['unreported_batches', 'unreported_summaries', 'batch_places', 'callback_holder', 'depth',
                                      'waiting_callbacks', 'run_lives', 'known_requests', 'ended_before',
                                      'dead_letter_news', 'quarantine_news', 'unbalanced_batches']),
      ('pipeline_submitter', array['send', 'find_submission', 'open_execution', 'preview_files', 'lock_ledger',
                                      'add_files', 'seal', 'submit', 'submission']),
      ('pipeline_worker',    array['register_worker', 'beat', 'stop_worker', 'claim', 'lock_leases', 'finish', 'finish_and_claim', 'fail',
                                      'release', 'note_output', 'batch_files', 'pin_schema', 'claim_outbox', 'settle_outbox',
                                      'reap', 'expire_executions', 'compact', 'orphaned_outputs', 'forget_output',
                                      'mark_reported', 'mark_summary_reported',
                                      'publish_parquet', 'parquet_columns']),
      ('pipeline_operator',  array['configure_queue', 'register_pipeline', 'pause', 'resume', 'cancel', 'rerun', 'replay',
                                      'replay_many', 'discard', 'replay_outbox', 'reap', 'expire_executions', 'compact',
                                      'replace_file', 'prune_ledger', 'unpin_schema'])
    ) g(role_name, functions)
  loop
    for i in 1 .. cardinality(v_grant.functions) loop
      select count(*) into v_found from pg_catalog.pg_proc p
      where p.pronamespace = 'pipeline'::regnamespace and p.proname = v_grant.functions[i];
      if v_found <> 1 then
        raise exception 'grants.sql names %, of which there are %', v_grant.functions[i], v_found;
      end if;
      execute format('grant execute on function pipeline.%I to %I', v_grant.functions[i], v_grant.role_name);
    end loop;
  end loop;
end
$$;
