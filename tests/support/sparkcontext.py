"""Commands that use the session of the tests instead of starting Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@pytest.fixture
def context(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkContext:
    """The session's context, in which commands run that would start one of their own."""
    for module in ("commands.census", "spark.restore", "spark.verify", "spark.rekey.verify"):
        monkeypatch.setattr(f"mirror.{module}.open_context", lambda *_, **__: spark.sparkContext)
        monkeypatch.setattr(f"mirror.{module}.close_context", lambda _: None)
    return spark.sparkContext
