-- The manifests of Parquet datasets.
set local role pipeline_owner;

-- The committed files of each dataset: what is not here does not exist for a reader.
create table pipeline.parquet_file (
  dataset text not null,
  path text not null,             -- below the dataset's own path
  execution text not null,
  batch int not null check (batch >= 0),
  row_count bigint not null check (row_count >= 0),
  byte_count bigint not null check (byte_count > 0),
  published_at timestamptz not null default clock_timestamp(),
  primary key (dataset, path)
);
create index parquet_file_batch on pipeline.parquet_file (dataset, execution, batch);

-- The columns of each dataset, as Spark's JSON.
create table pipeline.parquet_dataset (
  dataset text primary key,
  columns jsonb not null
);
