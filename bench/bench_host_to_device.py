"""Host memory -> device memory: pageable, pinned, a pinned ring, coalesced; without an accelerator,
a copy within host memory."""


def bench_host_to_device(measure, case):
    measure(case)
