"""llama.cpp's own server, of the package xllamacpp, with the options of `llama-server` that the preset writes.

`python -m tests.llama_server --model TARGET.gguf --host 127.0.0.1 --port 8000 --parallel 2 --metrics`
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import Any

import xllamacpp


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, kind in (
        *(("--model", str), ("--host", str), ("--port", int), ("--parallel", int), ("--ctx-size", int)),
        *(("--threads", int), ("--spec-draft-model", str), ("--spec-draft-n-max", int), ("--spec-draft-n-min", int)),
        *(("--spec-draft-p-min", float), ("--spec-type", str), ("--spec-ngram-simple-size-n", int)),
        *(("--spec-ngram-simple-size-m", int), ("--spec-synth-rates", str)),
    ):
        parser.add_argument(name, type=kind)
    parser.add_argument("--metrics", action="store_true")
    return parser


def parameters(arguments: argparse.Namespace) -> Any:
    found = xllamacpp.CommonParams()
    found.model.path = arguments.model
    found.hostnames = [arguments.host]
    found.port = arguments.port
    found.n_parallel = arguments.parallel
    found.n_ctx = arguments.ctx_size or 4096
    found.n_gpu_layers = 0
    found.cpuparams.n_threads = found.cpuparams_batch.n_threads = arguments.threads or 1
    found.endpoint_metrics = arguments.metrics
    kinds = xllamacpp.common_speculative_type
    speculative = found.speculative
    if arguments.spec_draft_model:
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = speculative.draft
        draft.mparams.path = arguments.spec_draft_model
        draft.n_max, draft.n_min = arguments.spec_draft_n_max, arguments.spec_draft_n_min
        draft.p_min = arguments.spec_draft_p_min
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = arguments.threads or 1
        if arguments.spec_synth_rates:
            speculative.synth_rates = [float(rate) for rate in arguments.spec_synth_rates.split(",")]
    elif arguments.spec_type == "ngram-simple":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n = arguments.spec_ngram_simple_size_n
        speculative.ngram_simple.size_m = arguments.spec_ngram_simple_size_m
        speculative.ngram_simple.min_hits = 1
    return found


def main() -> None:
    try:
        server = xllamacpp.Server(parameters(options().parse_args()))
    except Exception as error:  # llama-server ends so, too: what was wrong stands in its log, without a traceback
        sys.exit(f"error: {error}")
    print("listening on", server.listening_address, flush=True)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    del server


if __name__ == "__main__":
    main()
