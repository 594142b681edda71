"""`python -m softtopk` is the command `softtopk`."""

from softtopk.cli import main

if __name__ == "__main__":
    main()
