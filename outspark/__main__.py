"""`python -m outspark` is the command `outspark`."""

from outspark.cli import main

if __name__ == "__main__":
    main()
