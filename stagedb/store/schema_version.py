"""The version of the store's schema, apart from the schema: most commands need no more of it."""

VERSION = 9
"""Version of the schema that this program writes. `Graph`, `Instance` and `Profile` nodes carry it."""
