pytest_plugins = ["bench.torch_there", "bench.plugin"]
