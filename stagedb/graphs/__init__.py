"""From a model and the options of a plan to a symbolic graph: backward, collectives, optimizer, buckets, edges.

`model_graph.build_graph` is the entry point. `block` lays one block out on the mesh, `assembly` puts the blocks
together.
"""
