"""Tables of measured times of operators and collectives, as functions of their sizes. See docs/tables.md."""
