"""A flow's topics on both clusters: what is planned, allowed, made and followed."""
