"""An engine whose options matter: argv is `serve MODEL` with --enforce-eager and --load-format."""

import sys
from pathlib import Path

from say import begin, error, info, pool, ready, serve, weights

eager, dummy = "--enforce-eager" in sys.argv, "dummy" in sys.argv
begin(sys.argv[2], eager=eager, load_format="dummy" if dummy else "auto")
if eager and "--fail-eager" in sys.argv:
    error("ValueError: eager isn't for me")
    sys.exit(1)
if not dummy:
    for path in Path(sys.argv[2]).glob("*.safetensors"):
        path.read_bytes()
weights()
pool()
info(f"init engine (profile, create kv cache, warmup model) took {1.5 if eager else 4.5} s")
ready()
serve()
