-- Small parts the other files share. Names with a leading underscore are not doors.
-- Error codes: PP001 lease lost, PP002 conflict, PP003 not found, PP004 invalid, PP005 wrong state, PP006 unknown worker.
set local role pipeline_owner;

-- A fencing token: 48 bits of time, then random. Ordered by time, so that the history's index
-- grows at one end; 74 random bits, so that nobody guesses or repeats one.
create or replace function pipeline._new_token() returns uuid
language sql volatile parallel safe
set search_path = pg_catalog, pg_temp
return encode(
  overlay(
    uuid_send(gen_random_uuid())
    placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
    from 1 for 6
  ), 'hex')::uuid;

-- The key of a file version in the ledger.
create or replace function pipeline.file_key(p_pipeline text, p_path text, p_version text) returns uuid
language sql stable parallel safe  -- with nothing set: otherwise it is not inlined, and costs three times as much
return encode(substring(sha256(
  convert_to(p_pipeline, 'UTF8') || '\x00'::bytea || convert_to(p_path, 'UTF8') || '\x00'::bytea || convert_to(p_version, 'UTF8')
) from 1 for 16), 'hex')::uuid;

-- The lane's id, made on first sight.
create or replace function pipeline._lane(
  p_queue text, p_pipeline text, p_kind text, p_priority smallint, p_tenant text
) returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_id int;
begin
  loop
    select id into v_id from pipeline.lane
    where queue = p_queue and pipeline = p_pipeline and kind = p_kind
      and priority = p_priority and tenant = p_tenant;
    exit when found;
    insert into pipeline.lane (queue, pipeline, kind, priority, tenant)
    values (p_queue, p_pipeline, p_kind, p_priority, p_tenant)
    on conflict do nothing
    returning id into v_id;
    exit when found;
  end loop;
  return v_id;
end
$$;

-- The moment from which a task is ready that becomes so now. Whatever makes a task ready asks here.
-- The claim starts at its lane's floor and never walks the dead index entries below it, of which there
-- are many while somebody holds an old transaction open. So no task may become ready below a floor: the
-- lock, held to the commit, keeps the floor from moving past a task that nobody else can see yet.
create or replace function pipeline._ready_at(p_lane int) returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock_shared(7023, p_lane % 64);  -- few locks, however many lanes
  return greatest(clock_timestamp(), (select floor from pipeline.lane where id = p_lane));
end
$$;

-- Moves the floors of these lanes up to their first ready task. Waits for nobody: a lane where somebody is
-- about to make a task ready is left for the next time. The last thing that a transaction does, since
-- others wait for its locks.
create or replace function pipeline._move_floors(p_lanes int[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
begin
  -- An old snapshot would not show what was made ready since.
  if current_setting('transaction_isolation') <> 'read committed' then
    return;
  end if;
  for i in 1 .. cardinality(p_lanes) loop
    continue when not pg_try_advisory_xact_lock(7023, p_lanes[i] % 64);
    v_now := clock_timestamp();
    update pipeline.lane l set floor = f.first from (
      select least(v_now, (
        select t.ready_at from pipeline.task t
        where t.lane_id = o.id and t.token is null and not t.suspect and t.ready_at >= o.floor
        order by t.ready_at, t.id limit 1)) as first
      from pipeline.lane o where o.id = p_lanes[i]) f
    where l.id = p_lanes[i] and l.floor < f.first - '1 s'::interval;
  end loop;
end
$$;

-- Since when sessions can exist. A crash of one backend ends every session without a new
-- postmaster; the unlogged table is empty after it, whatever the postmaster's start says.
create or replace function pipeline._server_ready() returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_seen timestamptz;
begin
  select seen_at into v_seen from pipeline.boot;
  if not found then
    insert into pipeline.boot default values on conflict do nothing;
    select seen_at into v_seen from pipeline.boot;
  end if;
  return greatest(v_seen, pg_postmaster_start_time());
end
$$;

-- What is answered is durable: a session that runs with synchronous_commit off has it on for this commit.
create or replace function pipeline._durable() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
end
$$;

-- Bounds how long the rest of this transaction may idle. A process that stopped inside it, or whose machine
-- is gone without a word, would hold its locks for as long as TCP takes to notice: hours.
create or replace function pipeline._bound_idle(p_limit interval) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now interval := current_setting('idle_in_transaction_session_timeout')::interval;
begin
  if v_now = '0' or v_now > p_limit then
    perform set_config('idle_in_transaction_session_timeout', (extract(epoch from p_limit) * 1000)::bigint::text, true);
  end if;
end
$$;

-- Wakes waiting workers. A hint: Postgres sends equal ones of a transaction once.
create or replace function pipeline._wake(p_queue text) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
return pg_notify('pg_pipeline', p_queue);

-- A text cut to a bound, so that no error message grows a row without end.
create or replace function pipeline._clip(p_text text, p_chars int default 20000) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return case when length(p_text) <= p_chars then p_text
            else left(p_text, p_chars - 20) || ' … (' || length(p_text) || ' chars)' end;

-- The execution's row by its key, or PP003.
create or replace function pipeline._execution(p_key text) returns pipeline.execution
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
begin
  select * into v_execution from pipeline.execution where key = p_key;
  if not found then
    raise exception using errcode = 'PP003',
      message = format('execution %s not found', p_key),
      hint = 'list them with pg-pipeline executions';
  end if;
  return v_execution;
end
$$;

-- Raises 40001 where this transaction's snapshot is older than a compaction: it shows the table empty, or as it never was.
-- With READ COMMITTED each statement of a volatile function has its lock before its snapshot, and never meets that.
create or replace function pipeline._of_now() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_by xid8 := (select last_value::text::xid8 from pipeline.compacted_by);
begin
  if current_setting('transaction_isolation') <> 'read committed'
     and not pg_visible_in_snapshot(v_by, pg_current_snapshot()) and pg_xact_status(v_by) = 'committed' then
    raise exception using errcode = '40001',
      message = 'this transaction''s snapshot is older than the tables it asks about: they were compacted since',
      hint = 'ask again in a new transaction, best in read committed';
  end if;
end
$$;
