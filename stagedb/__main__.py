"""`python -m stagedb`: the command line."""

from stagedb.cli import main

if __name__ == "__main__":
    main()
