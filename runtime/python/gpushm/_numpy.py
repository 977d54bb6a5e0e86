"""Copies to NumPy."""

from gpushm.errors import Status, from_status


def copy(array):
    import numpy

    raw = numpy.from_dlpack(array.bytes(), device="cpu") if _takes_device(numpy) else _through_host(array)
    try:
        dtype = numpy.dtype(array.dtype)
    except TypeError:
        dtype = _extension(array.dtype)
    return raw.reshape(-1).view(dtype).reshape(array.shape)


def _takes_device(numpy):
    return tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 1)


class _OnHost:
    """For NumPy before 2.1, whose from_dlpack has no parameter `device`."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **_):
        return self._array.__dlpack__(dl_device=(1, 0))

    def __dlpack_device__(self):
        return (1, 0)


def _through_host(array):
    import numpy

    return numpy.from_dlpack(_OnHost(array.bytes()))


def _extension(name):
    try:
        import ml_dtypes

        return ml_dtypes.finfo(name).dtype
    except (ImportError, ValueError) as error:
        raise from_status(Status.UNSUPPORTED, f"NumPy has no type {name}",
                          "install ml_dtypes, or take .bytes().numpy()") from error
