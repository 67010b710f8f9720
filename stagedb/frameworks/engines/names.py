"""The names of serving engines, which the help of the command line has."""

ENGINES = ("vllm", "sglang", "trtllm")
"""Every engine by the word that names it before a file: `vllm:args.txt`. Each has a table of its flags here."""
