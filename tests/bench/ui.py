"""The same as `glassblock bench ui`, whose options it takes."""

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "ui", *sys.argv[1:]]))
