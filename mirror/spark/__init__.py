"""The engine: the only room that knows Spark. The driver's other side, without it, is `driver/`."""
