"""The simulated engine as a program: ``engine_program.py FAMILY`` and a real command line.

Runs by its path, by ``-m``, and without ``PYTHONPATH``.
"""

import sys
from pathlib import Path


def main() -> int:
    """Returns the exit code."""
    # Run by its path the interpreter may not know where the package is, and with this folder
    # in its search path our modules would stand in for others of the same name.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    sys.path.insert(0, str(here.parents[1]))
    from capyctl.simulated.start_engine import start_engine

    return start_engine(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
