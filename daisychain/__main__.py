"""`python -m daisychain`."""

from daisychain.cli import main

if __name__ == "__main__":
    main()
