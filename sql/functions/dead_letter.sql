-- Dead letters: the whole task with its reason; they come back once.
set local role pipeline_owner;

-- Buries a task: the letter, the ack, and what the execution's policy says, in one transaction.
-- Caller: holds the task's lock; with several tasks, buries them by execution.
create or replace function pipeline._bury(p_task pipeline.task, p_reason text, p_error_class text, p_error text)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_letter    bigint;
  v_lane      pipeline.lane;
  v_execution pipeline.execution;
begin
  perform pipeline._durable();
  select * into v_lane from pipeline.lane where id = p_task.lane_id;
  insert into pipeline.dead_letter (task_id, queue, pipeline, kind, priority, tenant, execution_id, generation, batch,
                                       attempts, max_attempts, key, payload, reason, error_class, error)
  values (p_task.id, v_lane.queue, v_lane.pipeline, v_lane.kind, v_lane.priority, v_lane.tenant, p_task.execution_id,
          p_task.generation, p_task.batch, p_task.attempts, p_task.max_attempts, p_task.key, p_task.payload,
          p_reason, p_error_class, pipeline._clip(p_error))
  returning id into v_letter;
  delete from pipeline.task where id = p_task.id;

  if v_lane.kind = 'batch' and p_reason <> 'malformed' then
    select * into v_execution from pipeline.execution where id = p_task.execution_id for update;
    if v_execution.state in ('open', 'sealed') and v_execution.generation = p_task.generation then
      update pipeline.batch set state = 'dead'
      where execution_id = p_task.execution_id and number = p_task.batch and state = 'waiting';
      if not found then
        null;  -- the batch was settled by another task: this one counts for nothing
      elsif v_execution.policy = 'partial' then
        update pipeline.execution set settled = settled + 1 where id = v_execution.id;
        perform pipeline._barrier_reached(v_execution.id);
      elsif v_execution.policy = 'abort' then
        perform pipeline._end_early(v_execution.id, 'aborted',
          format('batch %s became dead letter %s: %s', p_task.batch, v_letter, p_reason));
      end if;
    end if;
  end if;
  return v_letter;
end
$$;

-- Puts a letter's task back with more attempts and its whole history. Two at once: the second
-- waits for the first, then finds no such letter.
create or replace function pipeline.replay(p_letter bigint, p_by text default session_user, p_request_id uuid default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_letter    pipeline.dead_letter;
  v_execution pipeline.execution;
  v_budget    int;
  v_lane      int;
  v_answer    jsonb;
begin
  v_answer := pipeline._answered(p_request_id, 'replay', p_letter::text);
  if v_answer is not null then
    return v_answer;
  end if;
  v_letter := pipeline._waiting_letter(p_letter);
  select max_attempts into v_budget from pipeline.queue where name = v_letter.queue;

  if v_letter.kind in ('batch', 'callback') and v_letter.reason <> 'malformed' then
    select * into v_execution from pipeline.execution where id = v_letter.execution_id for update;
    if v_execution.state not in ('open', 'sealed') or v_execution.generation <> v_letter.generation then
      raise exception using errcode = 'PP005',
        message = format('dead letter %s belongs to generation %s of execution %s, which is %s now (generation %s)',
                         p_letter, v_letter.generation, v_execution.key, v_execution.state, v_execution.generation),
        hint = 're-run the execution instead, or submit its released files';
    end if;
    if v_letter.kind = 'batch' then
      if v_execution.policy = 'partial' then
        if v_execution.callback_generation = v_execution.generation then
          raise exception using errcode = 'PP005',
            message = format('dead letter %s: the callback of execution %s was made without it', p_letter, v_execution.key),
            hint = 're-run the execution when it has finished';
        end if;
        update pipeline.execution set settled = settled - 1 where id = v_execution.id;
      end if;
      update pipeline.batch set state = 'waiting'
      where execution_id = v_execution.id and number = v_letter.batch and state = 'dead';
      if not found then
        raise exception using errcode = 'PP005',
          message = format('dead letter %s: batch %s of execution %s is not dead (any more)', p_letter, v_letter.batch, v_execution.key),
          hint = 'discard the letter';
      end if;
    end if;
  end if;

  v_lane := pipeline._lane(v_letter.queue, v_letter.pipeline, v_letter.kind, v_letter.priority, v_letter.tenant);
  insert into pipeline.task (id, lane_id, execution_id, generation, batch, attempts, max_attempts, key, payload, ready_at)
  values (v_letter.task_id, v_lane, v_letter.execution_id, v_letter.generation, v_letter.batch, v_letter.attempts,
          v_letter.attempts + v_budget, v_letter.key, v_letter.payload, pipeline._ready_at(v_lane));
  update pipeline.dead_letter set resolution = 'replayed', resolved_at = clock_timestamp(), resolved_by = p_by
  where id = p_letter;
  perform pipeline._wake(v_letter.queue);
  v_answer := jsonb_build_object('dead_letter', p_letter, 'task_id', v_letter.task_id, 'resolution', 'replayed');
  perform pipeline._answer(p_request_id, 'replay', p_letter::text, v_answer);
  return v_answer;
end
$$;

-- The waiting letter, locked, or PP003.
create or replace function pipeline._waiting_letter(p_letter bigint) returns pipeline.dead_letter
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_letter pipeline.dead_letter;
begin
  select * into v_letter from pipeline.dead_letter where id = p_letter and resolution is null for update;
  if not found then
    raise exception using errcode = 'PP003', message = format('dead letter %s not found', p_letter),
      hint = 'it does not exist, or was replayed or discarded meanwhile';
  end if;
  return v_letter;
end
$$;

-- Settles a letter for good: its files are discarded by a person, with the reason.
create or replace function pipeline.discard(
  p_letter bigint, p_why text, p_by text default session_user, p_request_id uuid default null
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_letter    pipeline.dead_letter;
  v_execution pipeline.execution;
  v_live      boolean;
  v_asked     text := concat_ws(': ', p_letter, p_why);
  v_answer    jsonb;
begin
  v_answer := pipeline._answered(p_request_id, 'discard', v_asked);
  if v_answer is not null then
    return v_answer;
  end if;
  if coalesce(btrim(p_why), '') = '' then
    raise exception using errcode = 'PP004', message = 'a discard needs a reason: it is all that will be left to explain it';
  end if;
  v_letter := pipeline._waiting_letter(p_letter);

  if v_letter.kind in ('batch', 'callback') and v_letter.reason <> 'malformed' then
    select * into v_execution from pipeline.execution where id = v_letter.execution_id for update;
    v_live := v_execution.state in ('open', 'sealed') and v_execution.generation = v_letter.generation;
    if v_letter.kind = 'callback' then
      if v_live then
        update pipeline.execution set state = 'finished', ended_at = clock_timestamp(),
          ended_reason = format('its callback was discarded: %s', p_why)
        where id = v_execution.id;
        perform pipeline._tell(v_execution.id, 'finished', jsonb_build_object('callback_discarded', p_why));
      end if;
    else
      -- Also when the execution went on without it: its files are discarded by a person then.
      -- A re-run's dead batch still shows its earlier rows: they stay, and so do its files.
      update pipeline.batch set state = case when token is null then 'discarded' else 'committed' end
      where execution_id = v_execution.id and number = v_letter.batch and state = 'dead' and generation = v_letter.generation;
      if found and v_live and v_execution.policy <> 'partial' then
        update pipeline.execution set settled = settled + 1 where id = v_execution.id;
        perform pipeline._barrier_reached(v_execution.id);
      end if;
    end if;
  end if;

  update pipeline.dead_letter set resolution = 'discarded', resolved_at = clock_timestamp(), resolved_by = p_by, resolved_why = p_why
  where id = p_letter;
  v_answer := jsonb_build_object('dead_letter', p_letter, 'resolution', 'discarded');
  perform pipeline._answer(p_request_id, 'discard', v_asked, v_answer);
  return v_answer;
end
$$;

-- Replays what matches; skips what another session has locked, and what can't be replayed any more.
-- Returns {"replayed": ids, "refused": [{"dead_letter", "why"}]}.
create or replace function pipeline.replay_many(
  p_queue text default null, p_pipeline text default null, p_execution text default null, p_reason text default null,
  p_limit int default 1000, p_by text default session_user
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_id       bigint;
  v_replayed jsonb := '[]';
  v_refused  jsonb := '[]';
begin
  for v_id in
    select d.id from pipeline.dead_letter d
    where d.resolution is null
      and (p_queue is null or d.queue = p_queue) and (p_pipeline is null or d.pipeline = p_pipeline)
      and (p_execution is null or d.execution_id = (select x.id from pipeline.execution x where x.key = p_execution))
      and (p_reason is null or d.reason = p_reason)
    order by d.execution_id nulls first, d.id  -- executions are locked by id
    limit p_limit for update skip locked
  loop
    begin
      perform pipeline.replay(v_id, p_by);
      v_replayed := v_replayed || to_jsonb(v_id);
    exception when sqlstate 'PP005' then
      v_refused := v_refused || jsonb_build_object('dead_letter', v_id, 'why', sqlerrm);
    end;
  end loop;
  return jsonb_build_object('replayed', v_replayed, 'refused', v_refused);
end
$$;
