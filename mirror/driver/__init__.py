"""The driver: plans tasks, controls them, and follows both clusters. Imports no PySpark."""
