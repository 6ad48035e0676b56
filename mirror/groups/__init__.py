"""Consumer groups: which offsets to commit on the target, and committing them."""
