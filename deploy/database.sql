-- The user that resolve and ingest read PostgreSQL as: it may read the tables it is given, and write nothing.
-- psql -v database=flights -v schema=public -v tables=flights -f deploy/database.sql

create role trainwright login password null connection limit 8;
alter role trainwright set default_transaction_read_only = on;

grant connect on database :"database" to trainwright;
grant usage on schema :"schema" to trainwright;
grant select on :tables to trainwright;
