"""The version of the store's schema, apart from the schema: most commands need no more of it."""

VERSION = 16
"""Version of the schema that this program writes. `Graph`, `Instance`, `Profile`, `Search` and `Run` nodes carry it."""

OLDEST_READABLE = 9
"""The oldest schema whose dumps are read: later ones only added labels, and left properties out."""
