-- Compaction: the hot tables (task, worker, lane) are written again without the rows that are dead but that vacuum may
-- not remove while somebody holds an old transaction open. Housekeeping: nothing depends on it for progress.
-- TRUNCATE gives a table new files. It is not MVCC: a snapshot older than it sees an empty table from then on. So what
-- reads these tables is volatile, to have its lock before its snapshot, and docs/protocol.md says who else is met.
set local role pipeline_owner;

-- The first hot table with more than its share of p_bytes, or null. Cheap: it asks the file system for sizes.
create or replace function pipeline._bloated(p_bytes bigint default 4194304) returns text
language sql volatile
set search_path = pg_catalog, pg_temp
return (
  select case when pg_relation_size('pipeline.task') > p_bytes then 'task'
              when pg_relation_size('pipeline.worker') > greatest(8192, p_bytes / 16) then 'worker'
              when pg_relation_size('pipeline.lane') > greatest(8192, p_bytes / 16) then 'lane' end
  from pipeline.compact_after
  where last_value < extract(epoch from clock_timestamp()) * 1000);

-- Makes one bloated table small and returns its name; null if there is none, if most of it lives, or if its lock was
-- not to be had at once. Takes that one lock and holds nothing else before it, so nobody who waits for it is waited for.
-- Others queue up behind it for as long as it waits and copies: hence the short timeout, the few rows, and the pause
-- after one that came to nothing.
create or replace function pipeline.compact(p_bytes bigint default 4194304) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_began   timestamptz := clock_timestamp();
  v_table   text;
  v_most    int;
  v_live    int;
  v_bytes   bigint := 0;
  v_done    boolean := false;
  v_tasks   pipeline.task[];
  v_workers pipeline.worker[];
  v_lanes   pipeline.lane[];
begin
  if current_setting('transaction_isolation') <> 'read committed' or pg_current_xact_id_if_assigned() is not null then
    raise exception using errcode = 'PP005',
      message = 'compact needs a read committed transaction in which nothing was written before',
      hint = 'call it by itself: select pipeline.compact()';
  end if;
  if not pg_try_advisory_xact_lock(hashtextextended('pipeline.compact', 0)) then
    return null;
  end if;
  v_table := pipeline._bloated(p_bytes);
  if v_table is null then
    return null;
  end if;
  v_most := case v_table when 'task' then 10000 else 1000 end;
  begin
    -- A guess, and no reason to stop the world for a long queue; what lives is counted under the lock.
    if pg_stat_get_live_tuples(format('pipeline.%I', v_table)::regclass) > v_most then
      null;
    elsif v_table = 'task' then
      lock table pipeline.task in access exclusive mode;
      select count(*), sum(pg_column_size(t.payload)) into v_live, v_bytes
      from (select payload from pipeline.task limit v_most + 1) t;
      if v_live <= v_most and coalesce(v_bytes, 0) <= 16777216 then
        v_tasks := array(select t from pipeline.task t);
        truncate pipeline.task;
        insert into pipeline.task select t.* from unnest(v_tasks) t;
        v_done := true;
      end if;
    elsif v_table = 'worker' then
      lock table pipeline.worker in access exclusive mode;
      v_workers := array(select w from pipeline.worker w limit v_most + 1);
      if cardinality(v_workers) <= v_most then
        truncate pipeline.worker;
        insert into pipeline.worker select w.* from unnest(v_workers) w;
        v_done := true;
      end if;
    else
      lock table pipeline.lane in access exclusive mode;
      v_lanes := array(select l from pipeline.lane l limit v_most + 1);
      if cardinality(v_lanes) <= v_most then
        truncate pipeline.lane;
        insert into pipeline.lane overriding system value select l.* from unnest(v_lanes) l;
        v_done := true;
      end if;
    end if;
  exception when lock_not_available then
    null;
  end;
  if v_done then
    perform setval('pipeline.compacted_by', pg_current_xact_id()::text::bigint);
    return v_table;
  end if;
  perform setval('pipeline.compact_after', (extract(epoch from
    clock_timestamp() + greatest('5 s', 50 * (clock_timestamp() - v_began))) * 1000)::bigint);
  return null;
end
$$;
