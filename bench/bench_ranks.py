"""Several ranks that share a storage, started by torchrun: each way of sharing it."""


def bench_ranks(measure, case):
    measure(case)
