"""Running a job of many processes: one specification, one result, several launchers."""
