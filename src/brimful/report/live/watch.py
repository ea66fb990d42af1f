"""`brimful watch`: a run, or the member of a study that is being written, as it goes on in another
process or on another machine.
"""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live

from brimful.base.errors import RunFolderError
from brimful.report.live.panel import print_line
from brimful.report.live.progress import SHOWN_ABOVE, LineListener
from brimful.report.live.run_state import Clock, describe
from brimful.report.live.scene import START_WAIT_S, Scene, is_watchable, scene_of
from brimful.report.live.view import WatchView, state_line
from brimful.runs.records import Record

POLL_S = 1.0
Sleep = Callable[[float], None]


def watch(
    folder: Path,
    console: Console,
    once: bool = False,
    *,
    clock: Clock = time.time,
    sleep: Sleep = time.sleep,
) -> None:
    """Show a run while another process writes it, until it ends; Ctrl-C leaves it running.

    On a terminal one view that is updated in place, elsewhere lines. A run that is about to start
    is waited for.

    Args:
        folder: Folder of a run, a study, a chain, or of runs; also its copy in a mirror.
        console: Where to show.
        once: Show how it stands, and return.
        clock, sleep: Unix seconds, and waiting; replaced in tests.

    Raises:
        RunFolderError: there is no such folder, or no run in it.
    """
    try:
        if not once:
            _wait_for(folder, console, clock, sleep)
        _require(folder)
        scene = scene_of(folder, clock)
        scene.poll()
        if once:
            _print_state(scene, console)
            _print_end(scene, console)
        elif console.is_terminal and not console.is_dumb_terminal:
            _live(scene, console, sleep)
        else:
            _in_lines(scene, console, sleep)
    except KeyboardInterrupt:
        print_line(console, "left; what was watched goes on by itself")


def _wait_for(folder: Path, console: Console, clock: Clock, sleep: Sleep) -> None:
    """Until there is something of a run, or it is clear that none comes."""
    started = clock()
    if is_watchable(folder):
        return
    print_line(
        console,
        f"there is no run in {folder} yet: waiting up to {START_WAIT_S:.0f} s for one (Ctrl-C"
        " leaves)",
    )
    while not is_watchable(folder) and clock() - started < START_WAIT_S:
        sleep(POLL_S)


def _require(folder: Path) -> None:
    if not is_watchable(folder):
        what = "is a file" if folder.exists() else "does not exist"
        if folder.is_dir():
            what = "holds no run"
        raise RunFolderError(
            f"{folder} {what}. Give the name of a run or the path of its folder; `brimful runs`"
            " lists them."
        )


def _live(scene: Scene, console: Console, sleep: Sleep) -> None:
    with Live(
        WatchView(scene.watched, scene.of_several), console=console, auto_refresh=False
    ) as live:

        def tell(record: Record) -> None:
            if record.kind in SHOWN_ABOVE:
                print_line(live.console, describe(record, scene.watched.state))

        live.refresh()
        while not scene.is_over:
            sleep(POLL_S)
            scene.poll(tell)
            live.update(WatchView(scene.watched, scene.of_several), refresh=True)
    _print_end(scene, console)


def _in_lines(scene: Scene, console: Console, sleep: Sleep) -> None:
    """How it stands, then lines as the run itself would print them, and a line when it falls
    silent.
    """
    _print_state(scene, console)
    lines = LineListener(console, scene.watched.state)
    shown, is_silent = scene.of_several, False

    def tell(record: Record) -> None:
        nonlocal shown
        if scene.of_several != shown:
            shown = scene.of_several
            print_line(console, shown)
        lines.state = scene.watched.state
        lines.show(record)

    while not scene.is_over:
        sleep(POLL_S)
        scene.poll(tell)
        if scene.watched.is_stale and not is_silent:
            print_line(console, state_line(scene.watched))
        is_silent = scene.watched.is_stale
    print_line(console, state_line(scene.watched))
    _print_end(scene, console)


def _print_state(scene: Scene, console: Console) -> None:
    view = WatchView(scene.watched, scene.of_several)
    if console.is_terminal and not console.is_dumb_terminal:
        console.print(view)
        return
    for line in view.lines(console):
        print_line(console, line)


def _print_end(scene: Scene, console: Console) -> None:
    if scene.is_over:
        for line in scene.end_lines():
            print_line(console, line)
