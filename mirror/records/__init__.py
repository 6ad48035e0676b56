"""The record batch format: bytes in, values out. No socket, no clock, no log."""
