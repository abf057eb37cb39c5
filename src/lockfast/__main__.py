"""`python -m lockfast` is the command `lockfast`."""

import sys

from lockfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
