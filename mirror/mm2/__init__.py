"""MirrorMaker 2's configuration, translated (pure): a `mm2.properties` in, a YAML file of ours for each flow out.

    properties   the text as Java reads it                 references  `${provider:...}` and secrets, as `${env:NAME}`
    scope        which properties hold for a flow          jaas        `sasl.jaas.config`
    clients      the sections source and target            reasons     why a key has no equivalent
    flows        the sections topics, groups and sync      document    the YAML, with what was left out in comments
    importing    the story

Nothing is dropped in silence: a key that was not translated is named, with the reason. No value of one is shown
anywhere, since any may be a secret.
"""
