"""Blocks are cut, joined and listed without losing a byte."""

from brimful.planning.memory_pool import Pool


def test_a_block_that_is_cut_leaves_a_linked_rest() -> None:
    pool = Pool("small", 2048)
    block = pool.add(4096, 2048)

    rest = pool.cut(block, 512)

    assert (block.size_bytes, rest.address, rest.size_bytes) == (512, 4608, 1536)
    assert block.next is rest
    assert rest.previous is block
    assert sorted(pool.blocks) == [4096, 4608]


def test_cutting_in_the_middle_keeps_the_chain() -> None:
    pool = Pool("small", 2048)
    first = pool.add(4096, 2048)
    last = pool.cut(first, 1536)

    middle = pool.cut(first, 512)

    assert [first.next, middle.next, last.next] == [middle, last, None]
    assert [first.previous, middle.previous, last.previous] == [None, first, middle]


def test_free_neighbours_on_both_sides_join() -> None:
    pool = Pool("small", 2048)
    first = pool.add(4096, 2048)
    middle = pool.cut(first, 512)
    last = pool.cut(middle, 512)
    pool.insert(first)
    pool.insert(last)

    whole = pool.coalesce(middle)

    assert (whole.address, whole.size_bytes, whole.previous, whole.next) == (4096, 2048, None, None)
    assert pool.free == []
    assert list(pool.blocks.values()) == [whole]


def test_neighbours_that_are_in_use_or_mapped_otherwise_do_not_join() -> None:
    pool = Pool("small", 2048)
    first = pool.add(4096, 6144)
    middle = pool.cut(first, 2048)
    last = pool.cut(middle, 2048)
    first.in_use, last.mapped = True, False
    pool.insert(last)

    assert pool.coalesce(middle) is middle
    assert middle.size_bytes == 2048
    assert pool.unmapped == [last.address]


def test_free_blocks_are_listed_by_size_then_address_and_unmapped_ones_by_address() -> None:
    pool = Pool("large", 2048)
    for address, size_bytes, mapped in (
        (9000, 1024, True),
        (1000, 1024, True),
        (5000, 512, True),
        (8000, 512, False),
        (3000, 4096, False),
    ):
        pool.insert(pool.add(address, size_bytes, mapped=mapped))

    assert pool.free == [(512, 5000), (1024, 1000), (1024, 9000)]
    assert pool.unmapped == [3000, 8000]

    pool.remove(pool.blocks[1000])
    pool.remove(pool.blocks[8000])

    assert pool.free == [(512, 5000), (1024, 9000)]
    assert pool.unmapped == [3000]
