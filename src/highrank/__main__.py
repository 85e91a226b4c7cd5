"""`python -m highrank` is `highrank`."""

from highrank.cli.main import main

if __name__ == "__main__":
    main()
