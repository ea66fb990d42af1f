import errno
import os
import sys

import pytest

from brimful.base.libc import c_library, call, end_with


def test_a_call_answers_what_the_function_answers() -> None:
    assert call("getpid") == os.getpid()
    assert c_library() is c_library()


@pytest.mark.skipif(sys.platform != "linux", reason="numbers of Linux's system calls")
def test_a_refused_call_raises_with_its_number() -> None:
    with pytest.raises(OSError, match="prctl") as caught:
        call("prctl", 9999, 0, 0, 0, 0)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_a_process_whose_parent_is_another_one_ends_at_once() -> None:
    child = os.fork()
    if child == 0:
        end_with(parent=os.getpid())
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
