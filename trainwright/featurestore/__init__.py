"""Feast repositories: fetch, open, and read views and services with their identity.

Feast is imported inside functions: it takes seconds, and only two steps need it.
"""

from trainwright.featurestore.online import Online, OnlineView, open_online
from trainwright.featurestore.repository import (
    SETTINGS,
    Checkout,
    checked_out,
    close_store,
    inside,
    is_remote,
    open_folder,
    open_settings,
    read_definitions,
    retry_outage,
)
from trainwright.featurestore.service import (
    Service,
    View,
    broken_offline_file,
    offline_file,
    offline_files,
    open_service,
)
from trainwright.featurestore.spark import address_towards, require_same_feast, spark_session

__all__ = [
    "SETTINGS",
    "Checkout",
    "Online",
    "OnlineView",
    "Service",
    "View",
    "address_towards",
    "broken_offline_file",
    "checked_out",
    "close_store",
    "inside",
    "is_remote",
    "offline_file",
    "offline_files",
    "open_folder",
    "open_online",
    "open_service",
    "open_settings",
    "read_definitions",
    "require_same_feast",
    "retry_outage",
    "spark_session",
]
