"""One command of brimful, whose exit code is kept for whoever asks later: `python -m
brimful.notebook.child FILE WORD...`
"""

import signal
import sys
from pathlib import Path

from brimful.base.rundir import write_json_atomically
from brimful.cli import main as run_command


def main() -> None:
    """Run the command; FILE holds its exit code afterwards, and does not where it was killed."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a kernel may have told its children to ignore it
    note, exit_code = Path(sys.argv[1]), 1
    sys.argv = ["brimful", *sys.argv[2:]]
    try:
        run_command()
        exit_code = 0
    except SystemExit as ended:
        exit_code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    finally:
        write_json_atomically(note, {"exit_code": exit_code})


if __name__ == "__main__":
    main()
