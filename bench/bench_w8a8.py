"""A checkpoint -> a rank's int8 weights in place: quantised while loading, or offline before."""


def bench_w8a8(measure, case):
    measure(case)
