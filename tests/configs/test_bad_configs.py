from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.texts import MINIMAL, MODEL_KEYS, NAME_RULE, PAIRS, TOP_KEYS, error_of, write

EXAMPLE = "'specgauge configs quickstart' shows one"
MODEL = "embedded, a hub id, a local directory, or a mapping with the key model"
DRAFT = "embedded, a hub id, a local directory, ngram, or a mapping with the key model, ngram or layers"
POSITIVE = "an integer of at least 1"
BATCH = "an integer from 1 to 65536"
CONTEXT = "an integer from 1 to 16777216"
GAMMA = "an integer from 1 to 64"
COLON = "found ': ' where no key may stand; check the indentation, and put text with ': ' in quotes"
RANGES = "a list of these, or a range such as 1:8 or 1:8:2"
SEARCH = "or {max: 16, search: adaptive}"

# (the file, the line it must give); the three lines of MINIMAL come first in most
FORM = {
    "empty": ("", f"file.yaml:1: the file is empty, allowed: a mapping with the keys {TOP_KEYS}; {EXAMPLE}"),
    "blank": ("\n \n", f"file.yaml:1: the file is empty, allowed: a mapping with the keys {TOP_KEYS}; {EXAMPLE}"),
    "comments": (
        "# nothing\n# here\n",
        f"file.yaml:1: the file holds only comments, allowed: a mapping with the keys {TOP_KEYS}; {EXAMPLE}",
    ),
    "null": (
        "# first\nnull\n",
        f"file.yaml:2: found nothing at the top level, allowed: a mapping with the keys {TOP_KEYS}; {EXAMPLE}",
    ),
    "list": (
        "- name: x\n",
        f"file.yaml:1: found a list at the top level, allowed: a mapping with the keys {TOP_KEYS}; {EXAMPLE}",
    ),
    "text": (
        "quickstart",
        f"file.yaml:1: found 'quickstart' at the top level, allowed: a mapping with the keys {TOP_KEYS}; {EXAMPLE}",
    ),
    "tab": (
        "name: x\ngrid:\n\tgamma: 4\n",
        "file.yaml:3: not valid YAML: found a tab where YAML allows only spaces; indent with spaces",
    ),
    "two colons": ("name: x\ngrid: gamma: 4\n", f"file.yaml:2: not valid YAML: {COLON}"),
    "open bracket": (
        "name: x\ngrid:\n  gamma: [1, 2\nseed: 0\n",
        "file.yaml:4: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got ':'"
        " (begun at line 3)",
    ),
    "open quote": (
        "name: 'x\n",
        "file.yaml:2: not valid YAML: while scanning a quoted scalar, found unexpected end of stream (begun at line 1)",
    ),
    "bad indent": (
        "name: x\n  grid: 1\n",
        f"file.yaml:2: not valid YAML: {COLON}",
    ),
    "list among keys": (
        "name: x\npairs:\n- 1\ngrid: {}\n- 2\n",
        "file.yaml:5: not valid YAML: while parsing a block mapping, expected <block end>, but found '-';"
        " check the indentation (begun at line 1)",
    ),
    "two documents": (
        "name: x\n---\nname: y\n",
        "file.yaml:2: not valid YAML: expected a single document in the stream, but found another document"
        " (begun at line 1)",
    ),
    "unknown alias": ("name: *nowhere\n", "file.yaml:1: not valid YAML: found undefined alias 'nowhere'"),
    "own anchor": (
        "name: x\npairs: &a\n  - *a\n",
        "file.yaml:2: found an anchor that contains itself, allowed: aliases of others",
    ),
    "control character": ("name: x\nseed: \x07\n", "file.yaml:2: found the character '\\x07', allowed: printable text"),
    "repeated key": (
        MINIMAL + "grid:\n  gamma: 4\n  context: 8\n  gamma: 5\n",
        "file.yaml:7: key 'gamma' in grid is given twice, first at line 5; remove one of them",
    ),
    "repeated section": (
        MINIMAL + "seed: 1\n" + PAIRS,
        "file.yaml:5: key 'pairs' at the top level is given twice, first at line 2; remove one of them",
    ),
    "number as key": (
        MINIMAL + "grid:\n  4: 5\n",
        "file.yaml:5: grid: found the key 4, allowed: text (put it in quotes)",
    ),
    "list as key": (
        MINIMAL + "? [a, b]\n: 1\n",
        "file.yaml:4: found the key (a list), allowed: text (put it in quotes)",
    ),
    "python tag": (
        MINIMAL + "seed: !!python/object:os.system 'x'\n",
        "file.yaml:4: seed: found the tag '!!python/object:os.system', allowed: plain YAML values",
    ),
    "wrong tag": (
        MINIMAL + "seed: !!int x\n",
        "file.yaml:4: seed: found 'x', allowed: a value that fits the tag !!int",
    ),
    "merge without mapping": (
        MINIMAL + "grid:\n  <<: 4\n",
        "file.yaml:5: grid: found the merge key << without a mapping, allowed: an alias of a mapping, <<: *name",
    ),
}

KEYS = {
    "misspelt section": (
        "name: x\npair:\n  - {name: a, target: embedded, draft: embedded}\n",
        f"file.yaml:2: unknown key 'pair' at the top level; did you mean 'pairs'? allowed: {TOP_KEYS}",
    ),
    "misspelt field": (
        MINIMAL + "grid:\n  batch_size: 1\n  gama: 4\n",
        "file.yaml:6: unknown key 'gama' in grid; did you mean 'gamma'? allowed:"
        " batch_size, context, gamma, gamma_search, include, exclude",
    ),
    "unlike any": (
        MINIMAL + "grid:\n  zzz: 4\n",
        "file.yaml:5: unknown key 'zzz' in grid, allowed: batch_size, context, gamma, gamma_search, include, exclude",
    ),
    "upper case": (
        MINIMAL + "Seed: 4\n",
        f"file.yaml:4: unknown key 'Seed' at the top level; did you mean 'seed'? allowed: {TOP_KEYS}",
    ),
    "in a pair": (
        "name: x\npairs:\n  - name: a\n    targt: embedded\n    draft: embedded\n",
        "file.yaml:4: unknown key 'targt' in pairs[0]; did you mean 'target'? allowed:"
        " name, target, draft, mode, threads",
    ),
    "in a model": (
        "name: x\npairs:\n  - name: a\n    target: embedded\n    draft:\n      model: embedded\n      dtyp: float32\n",
        f"file.yaml:7: unknown key 'dtyp' in pairs[0].draft; did you mean 'dtype'? allowed: {MODEL_KEYS}",
    ),
    "in sampling": (
        MINIMAL + "sampling:\n  - name: a\n    temprature: 1\n",
        "file.yaml:6: unknown key 'temprature' in sampling[0]; did you mean 'temperature'? allowed:"
        " name, temperature, top_k, top_p, min_p, repetition_penalty, min_tokens_to_keep",
    ),
    "in a range": (
        MINIMAL + "grid:\n  gamma: {from: 1, too: 4}\n",
        "file.yaml:5: unknown key 'too' in grid.gamma; did you mean 'to'? allowed: from, to, step",
    ),
    "no name": (PAIRS, f"file.yaml:1: missing key 'name' at the top level; it takes {NAME_RULE}"),
    "no pairs": (
        "name: x\nseed: 1\n",
        "file.yaml:1: missing key 'pairs' at the top level; it takes a list, each a mapping with the keys"
        " name, target, draft, mode, threads",
    ),
    "no draft": (
        "name: x\npairs:\n\n  - name: a\n    target: embedded\n",
        f"file.yaml:4: missing key 'draft' in pairs[0]; it takes {DRAFT}",
    ),
    "no model": (
        "name: x\npairs:\n  - name: a\n    target: embedded\n    draft: {dtype: float32}\n",
        "file.yaml:5: missing key 'model' in pairs[0].draft; it takes embedded, a hub id or a local directory",
    ),
    "sampling without name": (
        MINIMAL + "sampling:\n  - temperature: 1\n",
        f"file.yaml:5: missing key 'name' in sampling[0]; it takes {NAME_RULE}",
    ),
}

KINDS = {
    "list for mapping": (
        MINIMAL + "grid:\n  - gamma: 4\n",
        "file.yaml:4: grid: found a list, allowed: a mapping with the keys"
        " batch_size, context, gamma, gamma_search, include, exclude",
    ),
    "nothing for mapping": (
        MINIMAL + "precision:\n",
        "file.yaml:4: precision: found nothing, allowed: a mapping with the keys relative_ci, confidence,"
        " block_samples, min_blocks, max_blocks, max_seconds, max_cell_seconds, bootstrap_replicates",
    ),
    "mapping for list": (
        "name: x\npairs: {name: a, target: embedded, draft: embedded}\n",
        "file.yaml:2: pairs: found a mapping, allowed: a list, each a mapping with the keys"
        " name, target, draft, mode, threads",
    ),
    "text for list": (
        MINIMAL + "sampling: greedy\n",
        "file.yaml:4: sampling: found 'greedy', allowed: a list, each a mapping with the keys"
        " name, temperature, top_k, top_p, min_p, repetition_penalty, min_tokens_to_keep",
    ),
    "text for mapping in list": (
        MINIMAL + "sampling:\n  - greedy\n",
        "file.yaml:5: sampling[0]: found 'greedy', allowed: a mapping with the keys"
        " name, temperature, top_k, top_p, min_p, repetition_penalty, min_tokens_to_keep",
    ),
    "number for model": (
        "name: x\npairs:\n  - {name: a, target: 7, draft: embedded}\n",
        f"file.yaml:3: pairs[0].target: found 7, allowed: {MODEL}",
    ),
    "list for model": (
        "name: x\npairs:\n  - name: a\n    target: embedded\n    draft: [embedded]\n",
        f"file.yaml:5: pairs[0].draft: found a list, allowed: {DRAFT}",
    ),
    "empty model": (
        "name: x\npairs:\n  - {name: a, target: ' ', draft: embedded}\n",
        "file.yaml:3: pairs[0].target: found ' ', allowed: embedded, a hub id or a local directory",
    ),
    "empty list of pairs": (
        "name: x\npairs: []\n",
        "file.yaml:2: pairs: found an empty list, allowed: a list, each a mapping with the keys"
        " name, target, draft, mode, threads, at least one",
    ),
    "empty list of sampling": (
        MINIMAL + "sampling: []\n",
        "file.yaml:4: sampling: found an empty list, allowed: a list, each a mapping with the keys"
        " name, temperature, top_k, top_p, min_p, repetition_penalty, min_tokens_to_keep, at least one",
    ),
    "text for integer": (
        MINIMAL + "seed: '4'\n",
        "file.yaml:4: seed: found '4', allowed: an integer from 0 to 9223372036854775807",
    ),
    "fraction for integer": (
        MINIMAL + "acceptance:\n  chunk: 1.5\n",
        f"file.yaml:5: acceptance.chunk: found 1.5, allowed: {CONTEXT}",
    ),
    "whole float for integer": (
        MINIMAL + "acceptance:\n  chunk: 128.0\n",
        f"file.yaml:5: acceptance.chunk: found 128.0, allowed: {CONTEXT}",
    ),
    "boolean for integer": (
        MINIMAL + "workload:\n  repetitions: true\n",
        "file.yaml:5: workload.repetitions: found true, allowed: an integer from 1 to 100000",
    ),
    "boolean for number": (
        MINIMAL + "precision: {relative_ci: false}\n",
        "file.yaml:4: precision.relative_ci: found false, allowed: a number above 0 and below 1",
    ),
    "number for boolean": (
        MINIMAL + "acceptance:\n  sequential: 1\n",
        "file.yaml:5: acceptance.sequential: found 1, allowed: true or false",
    ),
    "word for boolean": (
        MINIMAL + "acceptance:\n  sequential: yes\n",
        "file.yaml:5: acceptance.sequential: found 'yes', allowed: true or false",
    ),
    "number for name": (
        "name: 7\n" + PAIRS,
        f"file.yaml:1: name: found 7, allowed: {NAME_RULE}; put it in quotes if it is meant as text",
    ),
    "percent": (
        MINIMAL + "precision: {relative_ci: 2%}\n",
        "file.yaml:4: precision.relative_ci: found '2%', allowed: a number above 0 and below 1",
    ),
    "unknown word": (
        MINIMAL + "acceptance_rule: ration\n",
        "file.yaml:4: acceptance_rule: found 'ration', allowed: ratio | match, or a list of these",
    ),
    "unknown word in list": (
        MINIMAL + "draft_sampling:\n  - same\n  - gredy\n",
        "file.yaml:6: draft_sampling[1]: found 'gredy', allowed: same | greedy",
    ),
    "no words": (
        MINIMAL + "draft_sampling: []\n",
        "file.yaml:4: draft_sampling: found an empty list, allowed: at least one value: same | greedy,"
        " or a list of these",
    ),
    "null among words": (
        MINIMAL + "acceptance_rule: [ratio, null]\n",
        "file.yaml:4: acceptance_rule[1]: found nothing, allowed: ratio | match",
    ),
    "quantization as text": (
        "name: x\npairs:\n  - {name: a, target: {model: o/m, quantization: int8}, draft: embedded}\n",
        "file.yaml:3: pairs[0].target.quantization: found 'int8', allowed: a mapping as transformers'"
        " quantization_config takes it, or null",
    ),
}

VALUES = {
    "zero in a list": (
        MINIMAL + "grid:\n  batch_size:\n    - 1\n    - 0\n",
        f"file.yaml:7: grid.batch_size[1]: found 0, allowed: {BATCH}",
    ),
    "zero alone": (
        MINIMAL + "grid: {batch_size: 0}\n",
        f"file.yaml:4: grid.batch_size: found 0, allowed: {BATCH}, {RANGES}",
    ),
    "empty axis": (
        MINIMAL + "grid: {context: []}\n",
        f"file.yaml:4: grid.context: found an empty list, allowed: at least one value: {CONTEXT}, {RANGES}",
    ),
    "gamma zero": (
        MINIMAL + "grid: {gamma: [0, 1]}\n",
        f"file.yaml:4: grid.gamma[0]: found 0, allowed: {GAMMA}",
    ),
    "gamma huge": (
        MINIMAL + "grid: {gamma: 65}\n",
        f"file.yaml:4: grid.gamma: found 65, allowed: {GAMMA}, {RANGES}, {SEARCH}",
    ),
    "descending range": (
        MINIMAL + "grid:\n  gamma: 6:1\n",
        "file.yaml:5: grid.gamma: found '6:1', allowed: a range that ends where it starts or later, such as 1:8",
    ),
    "range without step": (
        MINIMAL + "grid:\n  gamma: '1:6:0'\n",
        "file.yaml:5: grid.gamma: found '1:6:0', allowed: a range whose step is at least 1",
    ),
    "range out of bounds": (
        MINIMAL + "grid:\n  gamma: 1:99\n",
        f"file.yaml:5: grid.gamma: found '1:99', allowed: a range of which every value is {GAMMA}",
    ),
    "range of too many": (
        MINIMAL + "grid:\n  context: 1:4096\n",
        "file.yaml:5: grid.context: found '1:4096', allowed: a range of at most 1000 values",
    ),
    "half a range": (
        MINIMAL + "grid:\n  gamma: '1:'\n",
        f"file.yaml:5: grid.gamma: found '1:', allowed: {GAMMA}, {RANGES}, {SEARCH}",
    ),
    "range in a list": (
        MINIMAL + "grid:\n  gamma: [1, 4:6]\n",
        f"file.yaml:5: grid.gamma[1]: found '4:6', allowed: {GAMMA}",
    ),
    "range without end": (
        MINIMAL + "grid:\n  gamma: {from: 1}\n",
        f"file.yaml:5: missing key 'to' in grid.gamma; it takes {GAMMA}",
    ),
    "range mapping descending": (
        MINIMAL + "grid:\n  gamma: {from: 6, to: 1}\n",
        "file.yaml:5: grid.gamma: found '6:1:1', allowed: a range that ends where it starts or later, such as 1:8",
    ),
    "range mapping step": (
        MINIMAL + "grid:\n  gamma:\n    from: 1\n    to: 6\n    step: 0\n",
        f"file.yaml:8: grid.gamma.step: found 0, allowed: {POSITIVE}",
    ),
    "infinite": (
        MINIMAL + "precision: {max_seconds: .inf}\n",
        "file.yaml:4: precision.max_seconds: found .inf, allowed: a number above 0 seconds, or null (no limit)",
    ),
    "too large for a float": (
        MINIMAL + "precision: {max_seconds: 1e999}\n",
        "file.yaml:4: precision.max_seconds: found .inf, allowed: a number above 0 seconds, or null (no limit)",
    ),
    "not a number": (
        MINIMAL + "sampling:\n  - name: a\n    temperature: .nan\n",
        "file.yaml:6: sampling[0].temperature: found .nan, allowed: a number of at least 0 and at most 100",
    ),
    "negative temperature": (
        MINIMAL + "sampling:\n  - {name: a, temperature: -1}\n",
        "file.yaml:5: sampling[0].temperature: found -1, allowed: a number of at least 0 and at most 100",
    ),
    "top_p over 1": (
        MINIMAL + "sampling:\n  - {name: a, top_p: 90}\n",
        "file.yaml:5: sampling[0].top_p: found 90, allowed: a number above 0 and at most 1, or null (off)",
    ),
    "no penalty": (
        MINIMAL + "sampling:\n  - {name: a, repetition_penalty: 0}\n",
        "file.yaml:5: sampling[0].repetition_penalty: found 0, allowed: a number above 0 and at most 100",
    ),
    "one block": (
        MINIMAL + "precision:\n  min_blocks: 1\n",
        "file.yaml:5: precision.min_blocks: found 1, allowed: an integer from 2 to 100000",
    ),
    "blocks crossed": (
        MINIMAL + "precision:\n  min_blocks: 8\n  max_blocks: 7\n",
        "file.yaml:6: precision.max_blocks: found 7, allowed: at least min_blocks, which is 8",
    ),
    "blocks crossed by default": (
        MINIMAL + "precision:\n  min_blocks: 30\n",
        "file.yaml:4: precision.max_blocks: found 20, allowed: at least min_blocks, which is 30",
    ),
    "texts shorter than a round": (
        MINIMAL + "workload:\n  max_new_tokens: 6\n",
        "file.yaml:5: workload.max_new_tokens: found 6, allowed: more than the largest gamma, which is 6,"
        " or no round can be judged",
    ),
    "unfit name": ("name: a/b\n" + PAIRS, f"file.yaml:1: name: found 'a/b', allowed: {NAME_RULE}"),
    "name of dots": ("name: ..\n" + PAIRS, f"file.yaml:1: name: found '..', allowed: {NAME_RULE}"),
    "empty name": ("name: ''\n" + PAIRS, f"file.yaml:1: name: found '', allowed: {NAME_RULE}"),
    "name with the separator": (
        MINIMAL + "sampling:\n  - {name: a--b}\n",
        f"file.yaml:5: sampling[0].name: found 'a--b', allowed: {NAME_RULE}",
    ),
    "same pair twice": (
        "name: x\npairs:\n  - {name: a, target: embedded, draft: embedded}\n"
        "  - {name: a, target: embedded, draft: embedded}\n",
        "file.yaml:4: pairs[1].name: found 'a', allowed: a name that pairs[0] does not have already",
    ),
    "same sampling twice": (
        MINIMAL + "sampling:\n  - {name: t1}\n  - {name: t2}\n  - {name: T1}\n",
        "file.yaml:7: sampling[2].name: found 'T1', allowed: a name that sampling[0] does not have already",
    ),
    "no such mode": (
        MINIMAL + "mode: cudagraph\n",
        "file.yaml:4: mode: found 'cudagraph', allowed: eager | compile | cuda_graph, or a list of these",
    ),
    "no such device": (
        "name: x\npairs:\n  - {name: a, target: {model: o/m, device: gpu}, draft: embedded}\n",
        "file.yaml:3: pairs[0].target.device: found 'gpu', allowed: auto | cpu | cuda | cuda:0",
    ),
    "no such dtype": (
        "name: x\npairs:\n  - {name: a, target: {model: o/m, dtype: fp16}, draft: embedded}\n",
        "file.yaml:3: pairs[0].target.dtype: found 'fp16', allowed: auto | float32 | bfloat16 | float16 | float64,"
        " or a list of these",
    ),
    "embedded from a gguf file": (
        "name: x\npairs:\n  - name: a\n    draft: embedded\n    target:\n"
        "      model: embedded\n      gguf_file: w.gguf\n",
        "file.yaml:7: pairs[0].target.gguf_file: found 'w.gguf', allowed: null, since the model is embedded",
    ),
    "two placements": (
        "name: x\npairs:\n  - {name: a, target: {model: o/m, device: cpu, device_map: auto}, draft: embedded}\n",
        "file.yaml:3: pairs[0].target.device: found 'cpu', allowed: auto, since device_map places the model",
    ),
    "format of embedded prompts": (
        MINIMAL + "workload:\n  format: sharegpt\n",
        "file.yaml:5: workload.format: found 'sharegpt', allowed: auto or jsonl, since the prompts are embedded",
    ),
    "number of many digits": (
        MINIMAL + "seed: " + "9" * 5000 + "\n",
        "file.yaml:4: seed: found '" + "9" * 60 + "…', allowed: a value that fits the tag !!int",
    ),
}

SEVERAL = {
    "first by line": (
        "name: x\nsed: 1\n" + PAIRS + "grid:\n  gamma: 0\nmode: graph\n",
        f"file.yaml:2: unknown key 'sed' at the top level; did you mean 'seed'? allowed: {TOP_KEYS}"
        " (and 2 more faults)",
    ),
    "form and value": (
        MINIMAL + "seed: -1\nseed: 2\n",
        "file.yaml:4: seed: found -1, allowed: an integer from 0 to 9223372036854775807 (and 1 more fault)",
    ),
    "each item": (
        MINIMAL + "grid:\n  gamma: [true, 1, 0, 1.5]\n",
        f"file.yaml:5: grid.gamma[0]: found true, allowed: {GAMMA} (and 2 more faults)",
    ),
    "names beside other faults": (
        MINIMAL + "sampling:\n  - {name: a}\n  - {name: a}\nthreads: 0\n",
        "file.yaml:6: sampling[1].name: found 'a', allowed: a name that sampling[0] does not have already"
        " (and 1 more fault)",
    ),
    "an alias is followed to its anchor": (
        "name: x\npairs:\n  - name: a\n    target: &m\n      model: o/m\n      dtype: fp8\n    draft: *m\n",
        "file.yaml:6: pairs[0].target.dtype: found 'fp8', allowed: auto | float32 | bfloat16 | float16 | float64,"
        " or a list of these"
        " (and 1 more fault)",
    ),
}

ALL = FORM | KEYS | KINDS | VALUES | SEVERAL


def test_no_two_cases_share_a_name() -> None:
    assert len(ALL) == len(FORM) + len(KEYS) + len(KINDS) + len(VALUES) + len(SEVERAL)


@pytest.mark.parametrize(("text", "line"), ALL.values(), ids=ALL)
def test_a_bad_config_gives_exactly_one_line(text: str, line: str, tmp_path: Path) -> None:
    assert error_of(write(tmp_path, text)) == line
