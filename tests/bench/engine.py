"""The same as `glassblock bench engine`, whose options it takes."""

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "engine", *sys.argv[1:]]))
