"""A machine on which twins run: this processor, with twins compiled as C++."""

from __future__ import annotations

import pytest

from fedrank.kernels.devices import DeviceError
from tests import needs
from tests.cuda_on_cpu import Processor


@pytest.fixture(scope="session")
def machine() -> Processor:
    try:
        return Processor()
    except DeviceError as problem:
        needs.skip("compiler", str(problem))
