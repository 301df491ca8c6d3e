"""Generated requests against a real simulated daemon: ``python -m tests.fuzz --seconds 600``.

Needs schemathesis (`pip install -e .[fuzz]`). Its exit status is schemathesis's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import running, simulation
from tests.fuzz.models import MODELS

HERE = Path(__file__).parent
GRACE_S = 120.0
"""What a run may take beyond its seconds, for shrinking and the end."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    asked, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="capyctl-fuzz-") as folder:
        root = Path(folder)
        simulate = simulation(gpus=2, memory="80GiB", ram="512GiB")
        with running(root, simulate=simulate) as daemon:
            for name in MODELS:
                write_checkpoint(daemon.models / name, weights_bytes=64 << 20)
            address = f"http://127.0.0.1:{daemon.management_port}"
            command = [
                str(Path(sys.executable).with_name("schemathesis")),
                f"--config-file={HERE / 'schemathesis.toml'}",
                "run",
                f"{address}/management/v1/openapi.json",
                f"--url={address}",
                f"--header=Authorization:Bearer {daemon.token}",
                f"--max-time={asked.seconds}",
                # A stream lasts for five minutes; the conformance suite has its cases.
                "--exclude-operation-id=events",
                "--request-timeout=20",
                *more,
            ]
            env = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks"}
            done = subprocess.run(
                command, env=env, cwd=HERE.parents[1], timeout=asked.seconds + GRACE_S, check=False
            )
            assert daemon.process is not None
            if daemon.process.poll() is not None:
                print(f"the daemon exited: {daemon.log_path.read_text()[-3000:]}")
                return 1
            return done.returncode


if __name__ == "__main__":
    sys.exit(main())
