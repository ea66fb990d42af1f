/* The replay of allocator.py in C: the same steps in the same order.
 *
 * It is built with the package where there is a C compiler; without it that module does the work.
 * tests/planning/test_allocator.py holds both equal. Sizes and addresses are in units of 512 bytes.
 * Only the stable interface of Python 3.11 is used, so one build serves all versions.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define UNIT_BYTES 512
#define MIB_UNITS 2048
#define SMALL MIB_UNITS                /* the largest block of the small pool */
#define SMALL_SEGMENT (2 * MIB_UNITS)
#define LARGE_SEGMENT (20 * MIB_UNITS)
#define OWN_FROM (10 * MIB_UNITS)      /* blocks from this size on have a segment of their own, */
#define OWN_STEP (2 * MIB_UNITS)       /* a multiple of this */

#define NONE (-1)                      /* no block */
#define DEAD (-1)                      /* a storage that does not live */
#define EMPTY (-2)                     /* a storage that lives and holds no bytes */

typedef struct {
    int64_t size, address;
    int32_t previous, next;            /* neighbours in the segment */
    int is_free;
} Block;

typedef struct {
    int64_t size, address;
    int32_t block;
} Entry;

#define PAGE_ENTRIES 64

typedef struct {
    size_t count;                      /* at least one */
    Entry entries[PAGE_ENTRIES];
} Page;

/* Free blocks by size, then address, in pages: what is added or taken moves few others. */
typedef struct {
    Page **pages;
    size_t count, room;
} FreeList;

/* Where an entry is. */
typedef struct {
    size_t page, index;
} Place;

typedef struct {
    Block *blocks;
    size_t count, room;
    int32_t unused;                    /* head of the list of blocks to use again, by `next` */
    FreeList small, large;
} Memory;

static int
is_before(const Entry *entry, int64_t size, int64_t address)
{
    return entry->size < size || (entry->size == size && entry->address < address);
}

/* The first entry that is not before (size, address); in the page behind the last one if all are. */
static Place
position(const FreeList *list, int64_t size, int64_t address)
{
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const Page *page = list->pages[middle];
        if (is_before(&page->entries[page->count - 1], size, address))
            low = middle + 1;
        else
            high = middle;
    }
    Place place = {low, 0};
    if (low == list->count)
        return place;
    const Page *page = list->pages[low];
    high = page->count - 1;            /* the last entry is not before it */
    while (place.index < high) {
        size_t middle = (place.index + high) / 2;
        if (is_before(&page->entries[middle], size, address))
            place.index = middle + 1;
        else
            high = middle;
    }
    return place;
}

/* Make room for one more item; 0 if there is no memory. */
static int
grow(void **items, size_t count, size_t *room, size_t item_bytes)
{
    if (count < *room)
        return 1;
    size_t larger = *room ? 2 * *room : 256;
    void *moved = PyMem_Realloc(*items, larger * item_bytes);
    if (moved == NULL)
        return 0;
    *items = moved;
    *room = larger;
    return 1;
}

/* Put an empty page into the list; 0 if there is no memory. */
static int
add_page(FreeList *list, size_t number)
{
    if (!grow((void **)&list->pages, list->count, &list->room, sizeof(Page *)))
        return 0;
    Page *page = PyMem_Malloc(sizeof(Page));
    if (page == NULL)
        return 0;
    page->count = 0;
    memmove(&list->pages[number + 1], &list->pages[number],
            (list->count - number) * sizeof(Page *));
    list->pages[number] = page;
    list->count++;
    return 1;
}

/* Move the second half of a full page to a new one behind it; 0 if there is no memory. */
static int
divide_page(FreeList *list, size_t number)
{
    if (!add_page(list, number + 1))
        return 0;
    Page *full = list->pages[number], *other = list->pages[number + 1];
    full->count = PAGE_ENTRIES / 2;
    other->count = PAGE_ENTRIES - full->count;
    memcpy(other->entries, &full->entries[full->count], other->count * sizeof(Entry));
    return 1;
}

/* List a block; 0 if there is no memory. */
static int
list_block(Memory *memory, FreeList *list, int32_t number)
{
    Block *block = &memory->blocks[number];
    Place place = position(list, block->size, block->address);
    if (place.page == list->count) {   /* behind all others */
        if (list->count == 0 && !add_page(list, 0))
            return 0;
        place.page = list->count - 1;
        place.index = list->pages[place.page]->count;
    }
    if (list->pages[place.page]->count == PAGE_ENTRIES) {
        if (!divide_page(list, place.page))
            return 0;
        size_t kept = list->pages[place.page]->count;
        if (place.index > kept) {
            place.index -= kept;
            place.page++;
        }
    }
    Page *page = list->pages[place.page];
    memmove(&page->entries[place.index + 1], &page->entries[place.index],
            (page->count - place.index) * sizeof(Entry));
    page->entries[place.index] = (Entry){block->size, block->address, number};
    page->count++;
    block->is_free = 1;
    return 1;
}

static void
remove_page(FreeList *list, size_t number)
{
    PyMem_Free(list->pages[number]);
    list->count--;
    memmove(&list->pages[number], &list->pages[number + 1],
            (list->count - number) * sizeof(Page *));
}

static void
remove_entry(FreeList *list, Place place)
{
    Page *page = list->pages[place.page];
    page->count--;
    memmove(&page->entries[place.index], &page->entries[place.index + 1],
            (page->count - place.index) * sizeof(Entry));
    if (page->count == 0)
        remove_page(list, place.page);
}

static void
unlist_block(Memory *memory, FreeList *list, int32_t number)
{
    const Block *block = &memory->blocks[number];
    remove_entry(list, position(list, block->size, block->address));
}

/* A block that is on no list; NONE if there is no memory. */
static int32_t
new_block(Memory *memory, int64_t size, int64_t address, int32_t previous, int32_t next)
{
    int32_t number = memory->unused;
    if (number != NONE)
        memory->unused = memory->blocks[number].next;
    else {
        if (memory->count >= INT32_MAX
            || !grow((void **)&memory->blocks, memory->count, &memory->room, sizeof(Block)))
            return NONE;
        number = (int32_t)memory->count++;
    }
    memory->blocks[number] = (Block){size, address, previous, next, 0};
    return number;
}

static void
forget_block(Memory *memory, int32_t number)
{
    memory->blocks[number].next = memory->unused;
    memory->unused = number;
}

/* The size of the segment that is reserved for a block. */
static int64_t
segment_for(int64_t size)
{
    if (size <= SMALL)
        return SMALL_SEGMENT;
    if (size < OWN_FROM)
        return LARGE_SEGMENT;
    return (size + OWN_STEP - 1) / OWN_STEP * OWN_STEP;
}

/* Keep the first part of a block and list the rest; 0 if there is no memory. */
static int
split(Memory *memory, FreeList *list, int32_t number, int64_t size)
{
    Block before = memory->blocks[number];
    int32_t rest =
        new_block(memory, before.size - size, before.address + size, number, before.next);
    if (rest == NONE)
        return 0;
    if (before.next != NONE)
        memory->blocks[before.next].previous = rest;
    memory->blocks[number].next = rest;
    memory->blocks[number].size = size;
    return list_block(memory, list, rest);
}

/* Make one block of it and the one behind it. */
static void
swallow_next(Memory *memory, int32_t number)
{
    Block *block = &memory->blocks[number];
    int32_t gone = block->next;
    block->size += memory->blocks[gone].size;
    block->next = memory->blocks[gone].next;
    if (block->next != NONE)
        memory->blocks[block->next].previous = number;
    forget_block(memory, gone);
}

/* Free a block and join it with free neighbours; 0 if there is no memory. */
static int
join(Memory *memory, FreeList *list, int32_t number)
{
    int32_t next = memory->blocks[number].next, previous = memory->blocks[number].previous;
    if (next != NONE && memory->blocks[next].is_free) {
        unlist_block(memory, list, next);
        swallow_next(memory, number);
    }
    if (previous != NONE && memory->blocks[previous].is_free) {
        unlist_block(memory, list, previous);
        swallow_next(memory, previous);
        number = previous;
    }
    return list_block(memory, list, number);
}

/* Give segments of a page that are wholly free back; returns their size. */
static int64_t
release_page(Memory *memory, Page *page)
{
    int64_t released = 0;
    size_t kept = 0;
    for (size_t index = 0; index < page->count; index++) {
        Entry entry = page->entries[index];
        const Block *block = &memory->blocks[entry.block];
        if (block->previous == NONE && block->next == NONE) {
            released += entry.size;
            forget_block(memory, entry.block);
        }
        else
            page->entries[kept++] = entry;
    }
    page->count = kept;
    return released;
}

/* The same of all pages. */
static int64_t
release(Memory *memory, FreeList *list)
{
    int64_t released = 0;
    for (size_t number = list->count; number-- > 0;) {
        released += release_page(memory, list->pages[number]);
        if (list->pages[number]->count == 0)
            remove_page(list, number);
    }
    return released;
}

static void
end_list(FreeList *list)
{
    for (size_t number = 0; number < list->count; number++)
        PyMem_Free(list->pages[number]);
    PyMem_Free(list->pages);
}

/* A size in bytes, in units of whole blocks. */
static int64_t
in_units(int64_t bytes)
{
    return (bytes + UNIT_BYTES - 1) / UNIT_BYTES;
}

typedef struct {
    int64_t allocated, allocated_event, reserved_then, reserved, reserved_event, failed;
    int gave_back;
} Peaks;

/* Replay all events; 0 with an exception if they cannot be. `held` has a block for each storage. */
static int
run(Memory *memory, int32_t *held, const int32_t *events, size_t num_events, const int64_t *sizes,
    size_t num_storages, int64_t limit, Peaks *peaks)
{
    int64_t allocated = 0, reserved = 0, address = SMALL_SEGMENT;
    for (size_t index = 0; index < num_events; index++) {
        int64_t event = events[index];
        size_t storage = (size_t)(event > 0 ? event : -event) - 1;
        if (event > 0 && storage >= num_storages) {
            PyErr_Format(PyExc_IndexError, "event %zu: there is no storage %zu", index, storage);
            return 0;
        }
        if (event > 0 && held[storage] != DEAD) {
            PyErr_Format(PyExc_ValueError, "event %zu: storage %zu is born while it lives", index,
                         storage);
            return 0;
        }
        if (event <= 0 && (event == 0 || storage >= num_storages || held[storage] == DEAD)) {
            PyErr_Format(PyExc_ValueError,
                         "event %zu: storage %lld dies while it does not live", index,
                         (long long)(-event - 1));
            return 0;
        }
        int64_t size = in_units(sizes[storage]);
        FreeList *list = size <= SMALL ? &memory->small : &memory->large;
        if (event < 0) {
            int32_t freed = held[storage];
            held[storage] = DEAD;
            if (freed == EMPTY)
                continue;
            allocated -= memory->blocks[freed].size;
            if (!join(memory, list, freed))
                goto no_memory;
            continue;
        }
        if (size == 0) {
            held[storage] = EMPTY;
            continue;
        }
        int32_t block;
        Place place = position(list, size, 0);
        if (place.page < list->count) {
            block = list->pages[place.page]->entries[place.index].block;
            memory->blocks[block].is_free = 0;
            remove_entry(list, place);
        }
        else {
            int64_t segment = segment_for(size);
            if (reserved + segment > limit) {
                peaks->gave_back = 1;
                reserved -= release(memory, &memory->large) + release(memory, &memory->small);
                if (reserved + segment > limit) {
                    peaks->failed = (int64_t)index;
                    return 1;
                }
            }
            block = new_block(memory, segment, address, NONE, NONE);
            if (block == NONE)
                goto no_memory;
            address += segment;
            reserved += segment;
            if (reserved > peaks->reserved) {
                peaks->reserved = reserved;
                peaks->reserved_event = (int64_t)index;
            }
        }
        int64_t rest = memory->blocks[block].size - size;
        if (rest > (list == &memory->small ? 0 : SMALL) && !split(memory, list, block, size))
            goto no_memory;
        held[storage] = block;
        allocated += memory->blocks[block].size;
        if (allocated > peaks->allocated) {
            peaks->allocated = allocated;
            peaks->allocated_event = (int64_t)index;
            peaks->reserved_then = reserved;
        }
    }
    return 1;

no_memory:
    PyErr_NoMemory();
    return 0;
}

static PyObject *
replay(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer events = {0}, sizes = {0};
    long long limit;
    if (!PyArg_ParseTuple(arguments, "y*y*L:replay_sizes", &events, &sizes, &limit)) {
        return NULL;
    }
    size_t num_storages = (size_t)sizes.len / sizeof(int64_t);
    PyObject *told = NULL;
    Memory memory = {.unused = NONE};
    Peaks peaks = {.allocated_event = -1, .reserved_event = -1, .failed = -1};
    int32_t *held = PyMem_Malloc((num_storages + 1) * sizeof(int32_t));
    if (held == NULL)
        PyErr_NoMemory();
    else {
        for (size_t storage = 0; storage < num_storages; storage++)
            held[storage] = DEAD;
        if (run(&memory, held, events.buf, (size_t)events.len / sizeof(int32_t), sizes.buf,
                num_storages, limit, &peaks))
            told = Py_BuildValue(
                "LLLLLLi", (long long)peaks.allocated, (long long)peaks.allocated_event,
                (long long)peaks.reserved_then, (long long)peaks.reserved,
                (long long)peaks.reserved_event, (long long)peaks.failed, peaks.gave_back);
    }
    PyMem_Free(held);
    PyMem_Free(memory.blocks);
    end_list(&memory.small);
    end_list(&memory.large);
    PyBuffer_Release(&events);
    PyBuffer_Release(&sizes);
    return told;
}

static PyMethodDef METHODS[] = {
    {"replay_sizes", replay, METH_VARARGS,
     "replay_sizes(events, sizes, limit): int32, int64; the peaks in units, -1 for no event."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_replay", NULL, 0, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit__replay(void)
{
    return PyModule_Create(&MODULE);
}
