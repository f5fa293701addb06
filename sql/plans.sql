-- How the functions that run for every task are planned: from the indexes alone.
-- A queue is empty when it is analysed and full a second later, or nearly empty and full of dead rows that an old
-- transaction holds. A plan made from such statistics scans the table, or walks an index from end to end; it was
-- seen to turn a claim of 2 ms into one of 400. So these plans are made once, without looking at the parameters,
-- and have nothing to choose from but index scans, by the first column of their index.
-- Postgres 16 and 17 count what is switched off as very dear, and would compile such a plan: no jit.
set local role pipeline_owner;

do $$
declare
  v_hot  text[] := array[
    'claim', '_take_back', '_sift', '_pick', '_ready_lanes', '_should_rest',
    'finish', 'finish_and_claim', 'lock_leases', '_past', 'fail', 'release', 'note_output',
    'beat', '_any_work', 'stop_worker', '_gone_workers', '_hand_back', '_is_over', '_end_attempt', '_move_floors', '_ready_at',
    '_barrier_reached', '_bury'];
  v_name text;
  v_function regprocedure;
begin
  foreach v_name in array v_hot loop
    select p.oid::regprocedure into strict v_function from pg_proc p
    where p.pronamespace = 'pipeline'::regnamespace and p.proname = v_name;
    execute format(
      'alter function %s set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off '
      'set enable_mergejoin = off set jit = off', v_function);
  end loop;
  -- The first few of many: in the index's order, or all of them would be read to be sorted.
  foreach v_name in array array['_take_back', '_pick', '_ready_lanes', '_move_floors'] loop
    select p.oid::regprocedure into strict v_function from pg_proc p
    where p.pronamespace = 'pipeline'::regnamespace and p.proname = v_name;
    execute format('alter function %s set enable_sort = off', v_function);
  end loop;
  -- A scrape counts the attempts of minutes, of a history of weeks.
  alter function pipeline.metrics set enable_seqscan = off set jit = off;
  -- Ten thousand files against tens of millions: the ledger is asked by key, never read.
  alter function pipeline._take set plan_cache_mode = force_generic_plan set enable_seqscan = off
    set enable_mergejoin = off set enable_hashjoin = off set jit = off;
  -- A step's executions are found from the oldest on, and each by its index, whatever share of the ledger goes.
  alter function pipeline.prune_ledger set plan_cache_mode = force_generic_plan set enable_seqscan = off
    set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off set jit = off;
end
$$;
