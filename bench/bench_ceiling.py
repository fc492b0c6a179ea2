"""What this storage and this memory can do: the ceilings that the loaders are held against."""


def bench_ceiling(measure, case):
    measure(case)
