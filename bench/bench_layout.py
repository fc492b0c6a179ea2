"""int8 weights in memory -> the layouts that devices want."""


def bench_layout(measure, case):
    measure(case)
