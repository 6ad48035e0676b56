"""The commands of the laboratory, which load what they show when they run."""
