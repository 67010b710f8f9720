"""`store`: the database itself."""
