"""Do work on pieces of data in local processes or on Apache Beam, with one result."""

from trainwright.engine.pieces import map_merge, map_pieces, reachable, require_reachable

__all__ = ["map_merge", "map_pieces", "reachable", "require_reachable"]
