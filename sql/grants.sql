-- Who may call what: the whole matrix in one place. Tables are written only through functions.
set local role pg_pipeline_owner;

revoke all on all tables in schema pg_pipeline from public, pg_pipeline_reader, pg_pipeline_submitter, pg_pipeline_worker, pg_pipeline_operator;
revoke all on all functions in schema pg_pipeline from public, pg_pipeline_reader, pg_pipeline_submitter, pg_pipeline_worker, pg_pipeline_operator;

grant select on all tables in schema pg_pipeline to pg_pipeline_reader;

do $$
declare
  v_grant record;
  v_found int;
begin
  for v_grant in
    select * from (values
      ('pg_pipeline_reader',    array['audit', 'explain', 'file_key']),
      ('pg_pipeline_submitter', array['send', 'find_submission', 'open_execution', 'preview_files', 'lock_ledger',
                                      'add_files', 'seal', 'submit']),
      ('pg_pipeline_worker',    array['register_worker', 'beat', 'stop_worker', 'claim', 'lock_leases', 'finish', 'fail',
                                      'release', 'note_output', 'batch_files', 'pin_schema', 'claim_outbox', 'settle_outbox',
                                      'reap', 'expire_executions', 'orphaned_outputs', 'forget_output',
                                      'mark_reported', 'mark_summary_reported', 'register_pipeline']),
      ('pg_pipeline_operator',  array['configure_queue', 'register_pipeline', 'pause', 'resume', 'cancel', 'rerun', 'replay',
                                      'replay_many', 'discard', 'replay_outbox', 'reap', 'expire_executions'])
    ) g(role_name, functions)
  loop
    for i in 1 .. cardinality(v_grant.functions) loop
      select count(*) into v_found from pg_catalog.pg_proc p
      where p.pronamespace = 'pg_pipeline'::regnamespace and p.proname = v_grant.functions[i];
      if v_found <> 1 then
        raise exception 'grants.sql names %, of which there are %', v_grant.functions[i], v_found;
      end if;
      execute format('grant execute on function pg_pipeline.%I to %I', v_grant.functions[i], v_grant.role_name);
    end loop;
  end loop;
end
$$;
