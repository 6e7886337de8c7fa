"""Limits that a process sets on itself before a test: no root privileges, or a full disk."""

import ctypes
import os
import resource

_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2
_CAP_VERSION = 0x20080522


def drop_root_privileges() -> None:
    """Drop the capabilities that let root ignore file permissions."""
    if os.geteuid() == 0:
        libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(_CAP_VERSION, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, sets) == 0
        for number in (0, 1):  # effective and permitted
            sets[number] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
        assert libc.capset(header, sets) == 0
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):  # children must not regain it
            assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def limit_file_size() -> None:
    """Limit files to a few bytes, which looks like a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
