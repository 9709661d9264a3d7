"""`python -m fedrank` is the command `fedrank`."""

from fedrank.cli import main

if __name__ == "__main__":
    main()
