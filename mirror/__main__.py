"""`python -m mirror` is the `mirror` command. For `spark-submit` there is `configs/spark/mirror_app.py`."""

from mirror.cli import main

if __name__ == "__main__":
    main()
