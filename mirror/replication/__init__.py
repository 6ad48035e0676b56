"""The heart: batches come from the fetcher, get a verdict from the classifier, and go to the writer."""
