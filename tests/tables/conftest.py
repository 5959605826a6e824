"""The two stores, as tests/storage serves them."""

from tests.storage.conftest import bucket, environment, gs, gs_proxy, s3, s3_proxy

__all__ = ["bucket", "environment", "gs", "gs_proxy", "s3", "s3_proxy"]
