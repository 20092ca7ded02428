"""`python -m steingp` is `steingp`."""

from steingp.cli import main

if __name__ == "__main__":
    main()
