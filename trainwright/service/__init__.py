"""An API and pages for the runs, models and lineage of a runs folder, an MLflow and a Kubeflow."""
