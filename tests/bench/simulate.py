"""The same as `glassblock bench simulate`, whose options it takes."""

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "simulate", *sys.argv[1:]]))
