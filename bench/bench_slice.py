"""Full tensors -> this rank's shards: each rule in memory, and all of them from the files."""


def bench_slice(measure, case):
    measure(case)
