-- Audit: violations of P1 to P5, from the tables alone, in one statement and so of one moment.
-- Volatile, as all that reads a hot table: its snapshot must not be older than its locks (compact.sql).
set local role pipeline_owner;

create or replace function pipeline.audit(p_execution text default null)
returns table (promise text, execution text, subject text, violation text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select pipeline._of_now();
  with x as (
    select e.*, e.state in ('open', 'sealed') as live from pipeline.execution e
    where p_execution is null or e.key = p_execution
  ),
  b as (select b.*, x.key as execution, x.live, x.policy from x join pipeline.batch b on b.execution_id = x.id),
  f as (
    select f.execution_id, f.batch, count(*) as files,
           count(*) filter (where f.state = 'released') as released,
           count(*) filter (where f.state = 'quarantined') as quarantined
    from pipeline.file f
    where p_execution is null or f.execution_id = (select e.id from pipeline.execution e where e.key = p_execution)
    group by f.execution_id, f.batch
  ),
  t as (
    select t.*, l.kind from pipeline.task t join pipeline.lane l on l.id = t.lane_id
    where p_execution is null or t.execution_id = (select e.id from pipeline.execution e where e.key = p_execution)
  ),
  a as (
    select a.execution_id, a.generation, a.batch, a.kind, count(*) as commits from pipeline.attempt a
    where a.outcome = 'committed' and (p_execution is null or a.execution_id = (select e.id from pipeline.execution e where e.key = p_execution))
    group by 1, 2, 3, 4
  ),
  counted as (
    select b.execution_id, count(*) filter (where b.state <> 'released') as batches,
           count(*) filter (where b.state in ('committed', 'discarded') and (b.generation = x.generation or b.state <> 'waiting')
                               or b.state = 'dead' and x.policy = 'partial') as settled
    from b join x on x.id = b.execution_id group by b.execution_id
  )
  -- P1: every file is in exactly one place
  select 'P1', null::text, 'file ' || f.path, 'belongs to execution ' || f.execution_id || ', which does not exist'
  from pipeline.file f where p_execution is null and not exists (select from pipeline.execution e where e.id = f.execution_id)
  union all
  select 'P1', x.key, 'batch ' || f.batch, f.files || ' files in the ledger, but no batch'
  from f join x on x.id = f.execution_id
  where not exists (select from b where b.execution_id = f.execution_id and b.number = f.batch)
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'has ' || b.files || ' files, the ledger ' || coalesce(f.files, 0)
  from b left join f on f.execution_id = b.execution_id and f.batch = b.number
  where b.state <> 'released' and coalesce(f.files, 0) <> b.files
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is ' || b.state || ', but ' || f.released || ' of its files are released'
  from b join f on f.execution_id = b.execution_id and f.batch = b.number
  where b.state <> 'released' and f.released > 0
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is released, but ' || (f.files - f.released - f.quarantined) || ' of its files are not'
  from b join f on f.execution_id = b.execution_id and f.batch = b.number
  where b.state = 'released' and f.files > f.released + f.quarantined
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is waiting with ' || count(t.id) || ' tasks'
  from b left join t on t.execution_id = b.execution_id and t.batch = b.number and t.generation = b.generation and t.kind = 'batch' and t.key is null
  where b.state = 'waiting' and b.live group by b.execution, b.number having count(t.id) <> 1
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is ' || b.state || ' and task ' || t.id || ' would process it again'
  from b join t on t.execution_id = b.execution_id and t.batch = b.number and t.generation = b.generation and t.kind = 'batch'
  join x on x.id = b.execution_id and x.generation = t.generation
  where b.state <> 'waiting' and b.live and t.key is null
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is dead, but no dead letter waits for it'
  from b where b.state = 'dead' and b.live and not exists (
    select from pipeline.dead_letter d
    where d.execution_id = b.execution_id and d.batch = b.number and d.generation = b.generation and d.resolution is null)
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is ' || b.state || ' in an ended execution'
  from b join x on x.id = b.execution_id
  where not b.live and b.state = 'waiting'
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'is ' || b.state || ', but dead letter ' || d.id || ' waits for it'
  from b join pipeline.dead_letter d on d.execution_id = b.execution_id and d.batch = b.number and d.generation = b.generation
  where b.live and b.state <> 'dead' and d.kind = 'batch' and d.resolution is null and d.reason <> 'malformed'
  union all
  select 'P1', b.execution, 'batch ' || b.number, 'counts ' || b.quarantined || ' quarantined files, the ledger ' || coalesce(f.quarantined, 0)
  from b left join f on f.execution_id = b.execution_id and f.batch = b.number
  where b.state = 'committed' and b.quarantined <> coalesce(f.quarantined, 0)
  union all
  -- P2: at most one attempt's rows are visible
  select 'P2', b.execution, 'batch ' || b.number, 'is committed by no attempt'
  from b where b.live and b.state = 'committed' and not exists (select from pipeline.attempt p where p.token = b.token)
  union all
  select 'P2', x.key, 'batch ' || a.batch, a.commits || ' attempts of generation ' || a.generation || ' committed'
  from a join x on x.id = a.execution_id where a.kind = 'batch' and a.commits > 1
  union all
  select 'P2', b.execution, 'batch ' || b.number, 'shows attempt ' || b.token || ', which was ' || p.outcome
  from b join pipeline.attempt p on p.token = b.token where p.outcome <> 'committed'
  union all
  select 'P2', x.key, 'file ' || f.path, 'is in the ledger under another key than its own'
  from x join pipeline.file f on f.execution_id = x.id
  where f.key <> pipeline.file_key(x.pipeline, f.path, f.version)
  union all
  -- P3: only the holder of the current token
  select 'P3', x.key, 'task ' || t.id, 'is leased to worker ' || t.worker || ', which has no row'
  from t left join x on x.id = t.execution_id
  where t.token is not null and (p_execution is null or x.id is not null)
    and not exists (select from pipeline.worker w where w.id = t.worker)
  union all
  select 'P3', x.key, 'task ' || t.id, 'is leased with the token of an ended attempt'
  from t join pipeline.attempt p on p.token = t.token left join x on x.id = t.execution_id
  where p_execution is null or x.id is not null
  union all
  -- P4: the barrier is exact
  select 'P4', x.key, 'barrier', 'expects ' || x.expected || ' batches, there are ' || coalesce(c.batches, 0)
  from x left join counted c on c.execution_id = x.id where x.live and x.expected <> coalesce(c.batches, 0)
  union all
  select 'P4', x.key, 'barrier', 'says ' || x.settled || ' settled, there are ' || coalesce(c.settled, 0)
  from x left join counted c on c.execution_id = x.id where x.live and x.settled <> coalesce(c.settled, 0)
  union all
  select 'P4', x.key, 'barrier', 'finished while ' || x.remaining || ' batches remain'
  from x where x.state = 'finished' and x.remaining > 0
  union all
  select 'P4', x.key, 'callback', 'finished without one'
  from x where x.state = 'finished' and x.expected > 0 and x.callback_generation < x.generation
  union all
  select 'P4', x.key, 'callback', 'nothing remains, but its task was never made'
  from x where x.state = 'sealed' and x.remaining = 0 and x.callback_generation < x.generation
  union all
  select 'P4', x.key, 'callback', 'was made while ' || x.remaining || ' batches remain'
  from x where x.live and x.callback_generation = x.generation and x.remaining > 0
  union all
  select 'P4', x.key, 'callback', 'is in ' || n.places || ' places'
  from x cross join lateral (
    select (select count(*) from t where t.id = x.callback_task)
         + (select count(*) from pipeline.dead_letter d where d.task_id = x.callback_task and d.resolution is null) as places) n
  where x.live and x.callback_generation = x.generation and n.places <> 1
  union all
  select 'P4', x.key, 'callback', (count(*)) || ' callback tasks of one generation'
  from x join t on t.execution_id = x.id and t.kind = 'callback' and t.generation = x.generation and t.key is null
  where x.live group by x.key having count(*) > 1
  union all
  -- P1 again: nothing waits where no claim looks for it
  select 'P1', x.key, 'task ' || t.id, 'is ready since ' || t.ready_at || ', below the floor of its lane'
  from t join pipeline.lane l on l.id = t.lane_id left join x on x.id = t.execution_id
  where t.token is null and not t.suspect and t.ready_at < l.floor
  union all
  select 'P1', x.key, 'task ' || t.id, 'is leased since ' || t.claimed_at || ', below the floor of its worker'
  from t join pipeline.worker w on w.id = t.worker left join x on x.id = t.execution_id
  where t.claimed_at < w.floor
  union all
  -- P5: the callback acts once
  select 'P5', x.key, 'callback', 'committed ' || a.commits || ' times in generation ' || a.generation
  from a join x on x.id = a.execution_id where a.kind = 'callback' and a.commits > 1
  union all
  select 'P5', x.key, 'callback', 'committed, but the execution is ' || x.state
  from a join x on x.id = a.execution_id and x.generation = a.generation where a.kind = 'callback' and x.live
  union all
  select 'P5', x.key, 'outbox', 'the execution ' || case x.state when 'finished' then 'finished' else 'was ' || x.state end || ' and nobody is told'
  from x where not x.live and x.ended_at > now() - '29 days'::interval
    and not exists (select from pipeline.outbox o where o.execution_id = x.id and o.generation = x.generation and o.event = x.state);
end;
