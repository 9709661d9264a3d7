"""Opening the original of a document with the system's own program; only ever because somebody clicked."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

OpensOriginal = Callable[[str], str]  # from a path to what became of it, one of `web.NOTES`

# To open one of these is to run it, on some system.
RUNS = {
    *(".action", ".app", ".bat", ".cmd", ".com", ".command", ".cpl", ".desktop", ".exe", ".fileloc", ".hta"),
    *(".inetloc", ".jar", ".js", ".jse", ".lnk", ".msi", ".pif", ".ps1", ".reg", ".scpt", ".scr", ".service"),
    *(".terminal", ".tool", ".url", ".vbe", ".vbs", ".webloc", ".workflow", ".wsf", ".wsh"),
}
# Windows hands these to whatever program runs them, where one is installed.
RUNS_ON_WINDOWS = {
    *(".ahk", ".chm", ".gadget", ".jl", ".lua", ".msc", ".php", ".pl", ".py", ".pyw", ".pyz", ".r", ".rb", ".rkt"),
    *(".sct", ".sh", ".tcl", ".vb", ".ws", ".xll"),
}


def open_original(path: str) -> str:
    """Hand a file to the system, unless that could run it as a program."""
    if not path or not os.path.isabs(path):
        return "no-original"
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return "vanished"
    if not stat.S_ISREG(facts.st_mode):
        return "no-original"
    ending = Path(path).suffix.lower()
    if ending in RUNS or (sys.platform == "win32" and ending in RUNS_ON_WINDOWS):
        return "program"
    if os.name == "posix" and facts.st_mode & 0o111:
        return "program"
    if sys.platform == "win32":
        os.startfile(path)
        return "opened"
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        return "no-opener"
    silent = subprocess.DEVNULL
    started = subprocess.Popen([opener, path], stdin=silent, stdout=silent, stderr=silent, start_new_session=True)
    threading.Thread(target=started.wait, daemon=True).start()  # it may stay as long as its window
    return "opened"
