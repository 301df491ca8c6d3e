"""``python -m benchmarks [NAME] …``: one of the measurements below; relaying when none is named."""

import runpy
import sys

NAMES = ("hosts", "relay", "store", "switching")

named = len(sys.argv) > 1 and sys.argv[1] in NAMES
name = sys.argv.pop(1) if named else "relay"
runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
