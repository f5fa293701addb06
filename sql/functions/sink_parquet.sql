-- Parquet datasets: which files are committed, and with which columns.
set local role pipeline_owner;

-- Guarantees: afterwards the dataset's files of (execution, batch) are exactly p_files.
-- The caller is in the finish transaction and holds the task's lease.
create or replace function pipeline.publish_parquet(p_dataset text, p_execution text, p_batch int, p_files jsonb)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  delete from pipeline.parquet_file
  where dataset = p_dataset and execution = p_execution and batch = p_batch;
  insert into pipeline.parquet_file (dataset, path, execution, batch, row_count, byte_count)
  select p_dataset, f.path, p_execution, p_batch, f.rows, f.bytes
  from jsonb_to_recordset(p_files) as f(path text, rows bigint, bytes bigint)
  order by f.path;
end
$$;

-- Guarantees: the first caller sets the columns; everyone is told what they are. They change only from
-- what the caller saw (p_seen), under the row's lock.
create or replace function pipeline.parquet_columns(p_dataset text, p_columns jsonb, p_seen jsonb default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_columns jsonb;
begin
  insert into pipeline.parquet_dataset (dataset, columns) values (p_dataset, p_columns)
  on conflict (dataset) do update set columns = excluded.columns
    where parquet_dataset.columns = p_seen;
  select columns into v_columns from pipeline.parquet_dataset where dataset = p_dataset;
  return v_columns;
end
$$;

-- The committed files of a dataset, oldest batch first.
create or replace function pipeline.parquet_files(p_dataset text)
returns table (path text, execution text, batch int, row_count bigint, byte_count bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select f.path, f.execution, f.batch, f.row_count, f.byte_count
  from pipeline.parquet_file f where f.dataset = p_dataset
  order by f.execution, f.batch, f.path
$$;
