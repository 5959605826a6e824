"""The first experiment file and schema of a table, which ``trainwright init`` infers from the rows."""
