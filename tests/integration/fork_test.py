"""Run by fork_test.cc: uses libgpushm like a Python program, in the workers of multiprocessing's fork
mode. Arguments: the library, the broker's folder."""

import ctypes
import multiprocessing
import os
import sys

OK = 0
INVALID_ARGUMENT = 1
FORKED = 19

library = ctypes.CDLL(sys.argv[1])
folder = sys.argv[2].encode()


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("folder", ctypes.c_char_p),
                ("pod_uid", ctypes.c_char_p), ("driver", ctypes.c_char_p),
                ("timeout_ms", ctypes.c_int64)]


def open_client():
    options = OpenOptions(ctypes.sizeof(OpenOptions), folder)
    client = ctypes.c_void_p()
    status = library.gpushm_open(ctypes.byref(options), ctypes.byref(client))
    assert status == OK, status
    return client


def use_gpu(number):
    client = open_client()
    name = b"of-worker-%d-%d" % (os.getpid(), number)
    attachment = ctypes.c_void_p()
    status = library.gpushm_create(client, name, ctypes.c_uint64(4096), None,
                                   ctypes.byref(attachment))
    assert status == OK, status
    assert library.gpushm_attachment_detach(attachment, None) == OK
    assert library.gpushm_delete(client, name, None) == OK
    library.gpushm_close(client)
    return number


def use_parents(client_value):
    count = ctypes.c_size_t()
    return library.gpushm_list(ctypes.c_void_p(client_value), None, ctypes.c_size_t(0),
                               ctypes.byref(count))


def main():
    fork = multiprocessing.get_context("fork")
    assert library.gpushm_version() > 0
    with fork.Pool(2) as pool:
        assert pool.map(use_gpu, range(8)) == list(range(8))
    client = open_client()
    with fork.Pool(1) as pool:
        assert pool.map(use_parents, [client.value]) == [FORKED]
        assert pool.map(use_gpu, [0]) == [0]
    library.gpushm_close(client)
    assert use_parents(client.value) == INVALID_ARGUMENT


main()
