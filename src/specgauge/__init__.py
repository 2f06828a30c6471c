"""specgauge: does speculative decoding pay for this pair, on this machine, and with which gamma?"""
