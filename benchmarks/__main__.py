"""``python -m benchmarks [relay|store] …``: one of the measurements; relaying when none is named."""

import runpy
import sys

NAMES = ("relay", "store")

if len(sys.argv) > 1 and sys.argv[1] in NAMES:
    name = sys.argv.pop(1)
else:
    name = "relay"
runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
