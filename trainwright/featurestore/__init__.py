"""Opening a Feast repository: what is joined or materialized, from which files, with what identity.

Feast is imported inside functions: it takes seconds, and only two verbs need it.
"""

from trainwright.featurestore.online import Online, OnlineView, open_online
from trainwright.featurestore.repository import (
    OFFLINE_STORE,
    SETTINGS,
    close_store,
    open_folder,
    open_settings,
    open_store,
)
from trainwright.featurestore.service import Service, open_service
from trainwright.featurestore.view import View, offline_file, offline_files

__all__ = [
    "OFFLINE_STORE",
    "SETTINGS",
    "Online",
    "OnlineView",
    "Service",
    "View",
    "close_store",
    "offline_file",
    "offline_files",
    "open_folder",
    "open_online",
    "open_service",
    "open_settings",
    "open_store",
]
