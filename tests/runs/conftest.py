"""The run folders of the report's tests."""

import importlib.util
from pathlib import Path

_FILE = Path(__file__).parent.parent / "report" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("report_world", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
_WORLD = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_WORLD)
new_run = _WORLD.new_run
