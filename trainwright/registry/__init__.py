"""What register and promote share: names, MLflow's versions, the audit, one change at a time."""
