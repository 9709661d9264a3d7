"""Opening a file with the system's default program, unless that could execute the file."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

OUTCOMES = {
    "opened": "Asked the system to open the original file.",
    "no-original": "This document has no original file to open.",
    "program": "This file could run as a program, so it was not opened. Its location is shown below.",
    "no-opener": "Your system has no command to open files. The location of the file is shown below.",
    "vanished": "The original file no longer exists.",
}

# Opening such a file runs it on some operating systems.
RUNS = {
    *(".action", ".app", ".bat", ".cmd", ".com", ".command", ".cpl", ".desktop", ".exe", ".fileloc", ".hta"),
    *(".inetloc", ".jar", ".js", ".jse", ".lnk", ".msi", ".pif", ".ps1", ".reg", ".scpt", ".scr", ".service"),
    *(".terminal", ".tool", ".url", ".vbe", ".vbs", ".webloc", ".workflow", ".wsf", ".wsh"),
}
# On Windows these run if their interpreter is installed.
RUNS_ON_WINDOWS = {
    *(".ahk", ".chm", ".gadget", ".jl", ".lua", ".msc", ".php", ".pl", ".py", ".pyw", ".pyz", ".r", ".rb", ".rkt"),
    *(".sct", ".sh", ".tcl", ".vb", ".ws", ".xll"),
}


def open_original(path: str) -> str:
    """Open a file with the system's default program, unless that could execute it."""
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
    threading.Thread(target=started.wait, daemon=True).start()  # it may run as long as its window is open
    return "opened"
