"""Run a job of many processes, on this machine or on a Kubernetes cluster."""
