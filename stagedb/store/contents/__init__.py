"""What a store keeps: graphs, instances, their memory and their profiles.

They are written by the statements of `cypher/`, and read back as the types of the core. An instance is copied inside
the store and read as columns (`instances`), and its traces are exported from them (`exports`).
"""
