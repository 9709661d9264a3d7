"""Separate hosts need privileges; without them the reason is given. The run itself is a part of `make chaos`."""

from __future__ import annotations

import os
import shutil
import sys

from tests import needs
from tests.deploy import hosts


@needs.linux
def test_what_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert hosts.missing() == "network namespaces and accounts need root"
    monkeypatch.setattr(sys, "argv", ["hosts"])
    hosts.main()  # ends without an error
    assert capsys.readouterr().out == "skipped: network namespaces and accounts need root\n"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "nft" else f"/usr/bin/{tool}")
    assert hosts.missing() == "nft not found; install iproute2, nftables and util-linux"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert hosts.missing() == "network namespaces need Linux"
