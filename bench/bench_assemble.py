"""Checkpoint -> device, stage by stage and overlapped."""


def bench_assemble(measure, case):
    measure(case)
