"""MirrorMaker 2's configuration, translated (pure): a `mm2.properties` in, a YAML file of ours for each flow out.

Nothing is dropped in silence: a key that was not translated is named, with the reason. No value of one is shown
anywhere, since any may be a secret.
"""
