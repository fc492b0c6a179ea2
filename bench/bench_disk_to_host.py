"""File -> bytes in host memory, by each loader."""


def bench_disk_to_host(measure, case):
    measure(case)
