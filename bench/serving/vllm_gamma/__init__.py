"""The folder that goes onto a vLLM server's PYTHONPATH: its one module sets γ in the running engine."""
