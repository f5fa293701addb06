-- The checksum of the functions and grants as they were last applied.
select checksum from pipeline.schema_repeatable where name = 'functions';
