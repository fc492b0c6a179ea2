"""The checkpoint copied to another storage, from which it is then loaded (--stage)."""


def bench_stage(measure, case):
    measure(case)
