"""`python -m mirror` and `spark-submit` of this file are the `mirror` command."""

from mirror.cli import main

if __name__ == "__main__":
    main()
