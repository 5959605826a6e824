import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # as in tests/ingest: Google's library misses grpcio-status beside Beam
    import google.api_core.exceptions  # noqa: F401
