"""A live serving engine as its client sees it: streams under a held concurrency, counters, a server of our own."""
