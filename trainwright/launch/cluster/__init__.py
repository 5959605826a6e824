"""The launcher for Kubernetes: submits a job, monitors it, diagnoses its end, retries it and deletes it."""
