"""What `spark-submit` starts: the `mirror` command, in an environment where `mirror` is installed.

    spark-submit --master ... --conf ... mirror_app.py run eu-to-us.yaml --json

Spark takes Python programs by their ending, so the installed script `mirror` will not do. A file of its own, outside
the package, since a program's folder becomes the first place where Python looks for modules.
"""

from mirror.cli import main

if __name__ == "__main__":
    main()
