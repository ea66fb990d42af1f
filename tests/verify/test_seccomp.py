import errno
import struct

import pytest

from brimful.verify import seccomp

ALLOW, KILL, DENY, ABSENT = (
    0x7FFF0000,
    0x80000000,
    0x00050000 | errno.EPERM,
    0x00050000 | errno.ENOSYS,
)
X86, ARM = 0xC000003E, 0xC00000B7


def decide(
    program: bytes, number: int, architecture: int = X86, arguments: tuple[int, ...] = ()
) -> int:
    """What a filter answers, by running it as the kernel would."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator = step = 0
    while True:
        operation, if_true, if_false, value = code[step]
        step += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x15:
            step += if_true if accumulator == value else if_false
        else:
            assert operation == 0x35
            step += if_true if accumulator >= value else if_false


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
@pytest.mark.parametrize("files", [True, False])
def test_the_filter_lets_through_exactly_the_list(machine: str, files: bool) -> None:
    program = seccomp.assemble(machine, files=files)
    architecture, tables = seccomp.ARCHITECTURES[machine], seccomp.ALLOWED
    lists = [tables["without_files"], *([tables["files"]] if files else [])]
    listed = {numbers.get(machine) for calls in lists for numbers in calls.values()}
    with_arguments = {call["numbers"][machine] for call in tables["with_argument"].values()}

    allowed = {
        number for number in range(1000) if decide(program, number, architecture) == ALLOW
    } - with_arguments

    assert allowed == listed - {None}
    assert {
        number for number in range(1000) if decide(program, number, architecture) == ABSENT
    } == {435}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("socket", 41),
        ("clone", 56),
        ("fork", 57),
        ("execve", 59),
        ("kill", 62),
        ("chmod", 90),
        ("ptrace", 101),
        ("mount", 165),
        ("bpf", 321),
        ("process_vm_readv", 310),
        ("memfd_create", 319),
        ("io_uring_setup", 425),
        ("pidfd_getfd", 438),
        ("future", 999),
    ],
)
def test_dangerous_calls_are_denied(name: str, number: int) -> None:
    assert decide(seccomp.assemble("x86_64", files=True), number) == DENY


def test_calls_of_another_architecture_end_the_program() -> None:
    program = seccomp.assemble("x86_64", files=True)

    assert decide(program, 0, ARM) == KILL
    assert decide(program, 0, 0x40000003) == KILL
    assert decide(program, 0x40000000) == DENY


def test_some_calls_depend_on_an_argument() -> None:
    program = seccomp.assemble("x86_64", files=False)

    assert decide(program, 72, arguments=(1, 1)) == ALLOW
    assert decide(program, 72, arguments=(1, 8)) == DENY
    assert decide(program, 302, arguments=(0, 7, 0)) == ALLOW
    assert decide(program, 302, arguments=(0, 7, 1 << 40)) == DENY
    assert decide(program, 302, arguments=(0, 7, 16)) == DENY
