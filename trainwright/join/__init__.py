"""Join features to rows as they were known at each row's time."""
