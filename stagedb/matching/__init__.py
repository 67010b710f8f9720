"""A run that was recorded against a plan: which op is which, and what differs. Pure functions over plain data."""
