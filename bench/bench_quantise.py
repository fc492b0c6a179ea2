"""Weights in memory -> int8 or fp8 with scales: each scheme plain, fast, and the floor of both."""


def bench_quantise(measure, case):
    measure(case)
