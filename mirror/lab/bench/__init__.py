"""`mirror bench`: the mirror beside MirrorMaker 2 and other ways to copy a topic, measured alike on one machine."""
