/* The fast index of prefixes: a table of fixed size, which all processes of a node may share.
 *
 * A set has eight places. A place has the name of a block, a bit for each slot (replica) that holds it, and the time of
 * its last use, which is a count of placements. A new name takes a free place of its set, else one without bits, else
 * the one that was used least recently. No lock: places change by atomic operations, and a reader that comes between
 * two of them sees one block too many or too few, as it would a moment earlier or later.
 *
 * A dropped slot loses its bit in ``alive`` at once. Its bits in the places are cleared by ``tidy``, or else when the slot
 * is used again.
 */

#define _POSIX_C_SOURCE 200112L
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INTERFACE 3 /* as shared_index.py expects it */

enum {
    NAME_BYTES = 8,
    WAYS = 8,
    FREE = 0,
    CLAIMED = 1, /* no block has the name 0 or 1 */
    WORD_BITS = 64,
    MAX_WORDS = 16, /* 1,024 slots */
    PREFETCH = 8,   /* blocks ahead */
    HEADER_BYTES = 16384,
    MAX_PAUSES = 1000,
};

static const uint64_t MAGIC = 0x3158444e49424c02u;

typedef struct {
    uint64_t magic, num_sets, num_words;
    uint64_t ticks;           /* placements so far, and drops */
    uint64_t alive[MAX_WORDS];
    uint64_t dirty[MAX_WORDS]; /* slots whose bits in the places are of an earlier owner */
    uint64_t cleaning[MAX_WORDS]; /* slots whose bits a thread is clearing */
    uint64_t owners[MAX_WORDS * WORD_BITS]; /* hash of the key of each slot; 0: free */
    uint32_t left[MAX_WORDS * WORD_BITS];   /* when the slot was dropped, in ticks */
} Header;

_Static_assert(sizeof(Header) <= HEADER_BYTES, "the header has its room");

typedef struct {
    PyObject_HEAD
    Header *header;
    uint8_t *sets;
    size_t set_bytes, map_bytes;
    uint64_t num_sets;
    int num_words;
    uint64_t mine[MAX_WORDS * WORD_BITS]; /* the owner that this process knows of each slot; 0: any */
} Index;

/* A set: names, times of last use, bits. */
static inline uint64_t *names_of(uint8_t *set) { return (uint64_t *)(void *)set; }
static inline uint32_t *uses_of(uint8_t *set) { return (uint32_t *)(void *)(set + WAYS * 8); }
static inline uint64_t *bits_of(const Index *x, uint8_t *set, int way) {
    return (uint64_t *)(void *)(set + WAYS * 12) + (size_t)way * (size_t)x->num_words;
}

static inline uint8_t *set_of(const Index *x, uint64_t name) {
    __extension__ typedef unsigned __int128 Wide;
    uint64_t spread = name * 0x9e3779b97f4a7c15u;
    return x->sets + (size_t)(uint64_t)(((Wide)spread * x->num_sets) >> 64) * x->set_bytes;
}

static inline uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline bool swap(uint64_t *p, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(p, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline uint64_t name_at(const uint8_t *p) {
    uint64_t name;
    memcpy(&name, p, NAME_BYTES);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    name = __builtin_bswap64(name);
#endif
    return name > CLAIMED ? name : name + 2;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

static bool has_bits(const Index *x, uint8_t *set, int way) {
    uint64_t any = 0;
    for (int w = 0; w < x->num_words; w++) any |= load(bits_of(x, set, way) + w) & load(&x->header->alive[w]);
    return any != 0;
}

/* The place that a new name takes; -1 while others claim all of them. */
static int victim_of(const Index *x, uint8_t *set, uint32_t now) {
    int oldest = -1;
    uint32_t most_age = 0;
    for (int way = 0; way < WAYS; way++) {
        uint64_t name = load(names_of(set) + way);
        if (name == FREE) return way;
        if (name == CLAIMED) continue;
        uint32_t age = has_bits(x, set, way) ? now - __atomic_load_n(uses_of(set) + way, __ATOMIC_RELAXED) : UINT32_MAX;
        if (oldest < 0 || age > most_age) oldest = way, most_age = age;
    }
    return oldest;
}

static void place_one(const Index *x, uint64_t name, int word, uint64_t bit, uint32_t now) {
    uint8_t *set = set_of(x, name);
    for (int tries = 0; tries < 4; tries++) {
        for (int way = 0; way < WAYS; way++) {
            if (load(names_of(set) + way) != name) continue;
            uint64_t *bits = bits_of(x, set, way) + word;
            if (!(load(bits) & bit)) __atomic_fetch_or(bits, bit, __ATOMIC_RELAXED);
            __atomic_store_n(uses_of(set) + way, now, __ATOMIC_RELAXED);
            return;
        }
        int way = victim_of(x, set, now);
        if (way < 0) return;
        uint64_t old = load(names_of(set) + way);
        if (old == CLAIMED || !swap(names_of(set) + way, old, CLAIMED)) continue;
        for (int w = 0; w < x->num_words; w++) {
            __atomic_store_n(bits_of(x, set, way) + w, w == word ? bit : 0, __ATOMIC_RELAXED);
        }
        __atomic_store_n(uses_of(set) + way, now, __ATOMIC_RELAXED);
        __atomic_store_n(names_of(set) + way, name, __ATOMIC_RELEASE);
        return;
    }
}

/* Two writers may have placed a new name twice, so all places of the set are looked at, here and in find_one. */
static void remove_one(const Index *x, uint64_t name, int word, uint64_t bit) {
    uint8_t *set = set_of(x, name);
    for (int way = 0; way < WAYS; way++) {
        if (load(names_of(set) + way) == name) __atomic_fetch_and(bits_of(x, set, way) + word, ~bit, __ATOMIC_RELAXED);
    }
}

static inline bool find_one(const Index *x, uint64_t name, uint64_t *found) {
    uint8_t *set = set_of(x, name);
    uint64_t any = 0;
    for (int w = 0; w < x->num_words; w++) found[w] = 0;
    for (int way = 0; way < WAYS; way++) {
        if (__atomic_load_n(names_of(set) + way, __ATOMIC_ACQUIRE) != name) continue;
        for (int w = 0; w < x->num_words; w++) any |= found[w] |= load(bits_of(x, set, way) + w);
    }
    return any != 0;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* Clear a slot's bit in all places. */
static void sweep(const Index *x, int word, uint64_t bit) {
    for (uint64_t i = 0; i < x->num_sets; i++) {
        uint8_t *set = x->sets + i * x->set_bytes;
        for (int way = 0; way < WAYS; way++) {
            uint64_t *bits = bits_of(x, set, way) + word;
            if (load(bits) & bit) __atomic_fetch_and(bits, ~bit, __ATOMIC_RELAXED);
        }
    }
}

/* Clear a slot's bit in all places where that is due. Return whether another thread is doing so. */
static bool clean(const Index *x, int word, uint64_t bit) {
    Header *h = x->header;
    if (__atomic_fetch_or(&h->cleaning[word], bit, __ATOMIC_ACQ_REL) & bit) return true;
    if (__atomic_fetch_and(&h->dirty[word], ~bit, __ATOMIC_ACQ_REL) & bit) sweep(x, word, bit);
    __atomic_fetch_and(&h->cleaning[word], ~bit, __ATOMIC_ACQ_REL);
    return false;
}

/* Bring a slot to life, without the bits of an earlier owner. A thread that clears them may have died: that is waited
 * for, but not for long. */
static void revive(const Index *x, int word, uint64_t bit) {
    Header *h = x->header;
    if (load(&h->alive[word]) & bit) return;
    const struct timespec pause = {.tv_nsec = 200 * 1000};
    for (int pauses = 0; clean(x, word, bit); pauses++) {
        if (pauses < MAX_PAUSES) {
            nanosleep(&pause, NULL);
        } else {
            __atomic_fetch_or(&h->dirty[word], bit, __ATOMIC_RELEASE);
            __atomic_fetch_and(&h->cleaning[word], ~bit, __ATOMIC_ACQ_REL);
        }
    }
    __atomic_fetch_or(&h->alive[word], bit, __ATOMIC_RELEASE);
}

/* Whether this process may speak for the slot: another process may have given it to a newer replica. */
static bool may_change(const Index *x, Py_ssize_t slot) {
    return x->mine[slot] == 0 || x->mine[slot] == load(&x->header->owners[slot]);
}

static bool slot_in(const Index *x, PyObject *number, Py_ssize_t *slot) {
    *slot = PyLong_AsSsize_t(number);
    if (*slot == -1 && PyErr_Occurred()) return false;
    if (*slot >= 0 && *slot < x->num_words * WORD_BITS) return true;
    PyErr_Format(PyExc_IndexError, "slot %zd: the index has the slots 0 to %d", *slot, x->num_words * WORD_BITS - 1);
    return false;
}

static uint64_t hash_key(const char *key, Py_ssize_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (Py_ssize_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)key[i]) * 0x100000001b3u;
    hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93u;
    return hash ? hash : 1;
}

/* The slot of this owner; else the free one that has been free for longest; -1 where none is free. */
static int find_slot(const Index *x, uint64_t owner) {
    Header *h = x->header;
    uint32_t now = (uint32_t)load(&h->ticks), most_age = 0;
    int free_slot = -1;
    for (int slot = 0; slot < x->num_words * WORD_BITS; slot++) {
        uint64_t found = load(&h->owners[slot]);
        if (found == owner) return slot;
        uint32_t left = __atomic_load_n(&h->left[slot], __ATOMIC_RELAXED), age = left ? now - left : UINT32_MAX;
        if (found == 0 && (free_slot < 0 || age > most_age)) free_slot = slot, most_age = age;
    }
    return free_slot;
}

static PyObject *Index_slot_of(PyObject *self, PyObject *key) {
    Index *x = (Index *)self;
    Py_ssize_t bytes;
    const char *text = PyUnicode_AsUTF8AndSize(key, &bytes);
    if (text == NULL) return NULL;
    uint64_t owner = hash_key(text, bytes);
    for (;;) {
        int slot = find_slot(x, owner);
        if (slot < 0) {
            return PyErr_Format(PyExc_IndexError, "all %d slots of the index are taken", x->num_words * WORD_BITS);
        }
        uint64_t *place = &x->header->owners[slot];
        if (load(place) == owner || swap(place, 0, owner)) {
            /* Two processes that look for a slot at once may each take one: the lower one counts. */
            int first = find_slot(x, owner);
            if (first != slot) {
                swap(place, owner, 0);
                continue;
            }
            x->mine[slot] = owner;
            return PyLong_FromLong(slot);
        }
    }
}

/* Forget the blocks of a slot: its bits are cleared when it is used again. */
static void forget(const Index *x, Py_ssize_t slot) {
    Header *h = x->header;
    uint64_t bit = 1ull << (slot % WORD_BITS);
    int word = (int)(slot / WORD_BITS);
    if (__atomic_fetch_and(&h->alive[word], ~bit, __ATOMIC_ACQ_REL) & bit) {
        __atomic_fetch_or(&h->dirty[word], bit, __ATOMIC_RELEASE);
    }
}

static PyObject *Index_clear(PyObject *self, PyObject *number) {
    Index *x = (Index *)self;
    Py_ssize_t slot;
    if (!slot_in(x, number, &slot)) return NULL;
    if (may_change(x, slot)) forget(x, slot);
    Py_RETURN_NONE;
}

static PyObject *Index_drop(PyObject *self, PyObject *number) {
    Index *x = (Index *)self;
    Header *h = x->header;
    Py_ssize_t slot;
    if (!slot_in(x, number, &slot)) return NULL;
    uint64_t owner = x->mine[slot];
    bool may = may_change(x, slot);
    x->mine[slot] = 0;
    if (!may) Py_RETURN_NONE;
    forget(x, slot);
    uint32_t now = (uint32_t)__atomic_add_fetch(&h->ticks, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&h->left[slot], now ? now : 1, __ATOMIC_RELAXED);
    if (owner != 0) swap(&h->owners[slot], owner, 0);
    Py_RETURN_NONE;
}

/* Clear what dropped slots left behind, while other threads run. */
static PyObject *Index_tidy(PyObject *self, PyObject *ignored) {
    (void)ignored;
    Index *x = (Index *)self;
    Header *h = x->header;
    Py_BEGIN_ALLOW_THREADS
    for (int slot = 0; slot < x->num_words * WORD_BITS; slot++) {
        uint64_t bit = 1ull << (slot % WORD_BITS);
        int word = slot / WORD_BITS;
        if (load(&h->alive[word]) & bit) continue;
        if (load(&h->dirty[word]) & bit) clean(x, word, bit);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

static bool blocks_in(PyObject *blocks, Py_buffer *view) {
    if (PyObject_GetBuffer(blocks, view, PyBUF_SIMPLE) < 0) return false;
    if (view->len % NAME_BYTES == 0) return true;
    PyErr_Format(PyExc_ValueError, "names are of 8 bytes each, and these are %zd bytes", view->len);
    PyBuffer_Release(view);
    return false;
}

static void change(const Index *x, Py_ssize_t slot, const Py_buffer *view, bool places) {
    const uint8_t *names = view->buf, *end = names + view->len;
    uint64_t bit = 1ull << (slot % WORD_BITS);
    int word = (int)(slot / WORD_BITS);
    uint32_t now = 0;
    if (places) {
        revive(x, word, bit);
        now = (uint32_t)__atomic_add_fetch(&x->header->ticks, 1, __ATOMIC_RELAXED);
    } else if (!(load(&x->header->alive[word]) & bit)) {
        return;
    }
    for (const uint8_t *p = names; p < end; p += NAME_BYTES) {
        if (end - p > PREFETCH * NAME_BYTES) __builtin_prefetch(set_of(x, name_at(p + PREFETCH * NAME_BYTES)), 1);
        if (places) {
            place_one(x, name_at(p), word, bit, now);
        } else {
            remove_one(x, name_at(p), word, bit);
        }
    }
}

static PyObject *changed(PyObject *self, PyObject *const *args, Py_ssize_t num_args, bool places) {
    Index *x = (Index *)self;
    Py_ssize_t slot;
    Py_buffer view;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "a slot and names are needed");
        return NULL;
    }
    if (!slot_in(x, args[0], &slot) || !blocks_in(args[1], &view)) return NULL;
    if (may_change(x, slot)) change(x, slot, &view, places);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *Index_place(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    return changed(self, args, num_args, true);
}

static PyObject *Index_remove(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    return changed(self, args, num_args, false);
}

/* Note how deep the prompt is at the slots of these bits. */
static void note(int *depths, int word, uint64_t bits, int num_slots, int depth) {
    for (; bits; bits &= bits - 1) {
        int slot = word * WORD_BITS + __builtin_ctzll(bits);
        if (slot < num_slots) depths[slot] = depth;
    }
}

static void find_depths(const Index *x, const Py_buffer *view, int num_slots, int *depths) {
    const uint8_t *names = view->buf, *end = names + view->len;
    uint64_t alive[MAX_WORDS], found[MAX_WORDS];
    int depth = 0;
    for (int w = 0; w < x->num_words; w++) alive[w] = load(&x->header->alive[w]);
    for (const uint8_t *p = names; p < end; p += NAME_BYTES, depth++) {
        if (end - p > PREFETCH * NAME_BYTES) {
            uint8_t *set = set_of(x, name_at(p + PREFETCH * NAME_BYTES));
            for (size_t at = 0; at < x->set_bytes && at < 256; at += 64) __builtin_prefetch(set + at);
        }
        bool any = find_one(x, name_at(p), found);
        uint64_t left = 0;
        for (int w = 0; w < x->num_words; w++) {
            uint64_t gone = any ? alive[w] & ~found[w] : alive[w];
            if (gone) note(depths, w, gone, num_slots, depth);
            left |= alive[w] &= ~gone;
        }
        if (!left) return;
    }
    for (int w = 0; w < x->num_words; w++) note(depths, w, alive[w], num_slots, depth);
}

static PyObject *Index_depths(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    Index *x = (Index *)self;
    Py_buffer view;
    int depths[MAX_WORDS * WORD_BITS];
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "depths takes names and a number of slots");
        return NULL;
    }
    Py_ssize_t num = PyLong_AsSsize_t(args[1]);
    if (num == -1 && PyErr_Occurred()) return NULL;
    if (num < 0) return PyErr_Format(PyExc_ValueError, "the number of slots is %zd", num);
    if (!blocks_in(args[0], &view)) return NULL;
    int within = num < x->num_words * WORD_BITS ? (int)num : x->num_words * WORD_BITS;
    memset(depths, 0, (size_t)within * sizeof *depths);
    if (within > 0) find_depths(x, &view, within, depths);
    PyBuffer_Release(&view);
    PyObject *list = PyList_New(num);
    for (Py_ssize_t i = 0; list != NULL && i < num; i++) {
        PyObject *depth = PyLong_FromLong(i < within ? depths[i] : 0);
        if (depth == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, depth);
        }
    }
    return list;
}

static Py_ssize_t Index_len(PyObject *self) {
    Index *x = (Index *)self;
    Py_ssize_t num = 0;
    for (uint64_t i = 0; i < x->num_sets; i++) {
        uint8_t *set = x->sets + i * x->set_bytes;
        for (int way = 0; way < WAYS; way++) num += load(names_of(set) + way) > CLAIMED && has_bits(x, set, way);
    }
    return num;
}

static PyObject *Index_max_slots(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromLong(((Index *)self)->num_words * WORD_BITS);
}

static PyObject *Index_max_bytes(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromSize_t(((Index *)self)->map_bytes);
}

static PyObject *Index_max_blocks(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLongLong(((Index *)self)->num_sets * WAYS);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Map the file, which gets its size, and its place on the disk, from the first process that opens it: a page without a
 * place would end the process that touches it. */
static void *map_file(const char *path, size_t bytes) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return MAP_FAILED;
    struct stat found;
    void *map = MAP_FAILED;
    if (fstat(file, &found) == 0) {
        int failed = found.st_size == 0 ? posix_fallocate(file, 0, (off_t)bytes) : 0;
        if (failed == 0) found.st_size = found.st_size == 0 ? (off_t)bytes : found.st_size;
        if (failed != 0) {
            errno = failed;
        } else if (found.st_size == (off_t)bytes) {
            map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        } else {
            errno = EEXIST;
        }
    }
    int why = errno;
    close(file);
    errno = why;
    return map;
}

static bool begin(Index *x) {
    Header *h = x->header;
    if (load(&h->magic) == 0) {
        h->num_sets = x->num_sets;
        h->num_words = (uint64_t)x->num_words;
        swap(&h->magic, 0, MAGIC);
    }
    if (h->magic == MAGIC && h->num_sets == x->num_sets && h->num_words == (uint64_t)x->num_words) return true;
    PyErr_SetString(PyExc_ValueError, "the file holds an index of another size; remove it, or give the same sizes");
    return false;
}

static PyObject *Index_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *words[] = {"max_bytes", "max_slots", "path", NULL};
    Py_ssize_t max_bytes = 64 * 1024 * 1024, max_slots = 256;
    const char *path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|nnz:SharedIndex", words, &max_bytes, &max_slots, &path)) return NULL;
    int num_words = (int)((max_slots + WORD_BITS - 1) / WORD_BITS);
    if (max_slots < 1 || num_words > MAX_WORDS) {
        return PyErr_Format(PyExc_ValueError, "max_slots is %zd; it may be 1 to %d", max_slots, MAX_WORDS * WORD_BITS);
    }
    size_t set_bytes = (size_t)WAYS * (12 + 8 * (size_t)num_words);
    set_bytes = (set_bytes + 63) / 64 * 64;
    if (max_bytes < (Py_ssize_t)(HEADER_BYTES + set_bytes)) {
        return PyErr_Format(PyExc_ValueError, "max_bytes is %zd; the least is %zu", max_bytes, HEADER_BYTES + set_bytes);
    }
    uint64_t num_sets = ((size_t)max_bytes - HEADER_BYTES) / set_bytes;
    size_t bytes = HEADER_BYTES + (size_t)num_sets * set_bytes;
    void *map = path != NULL ? map_file(path, bytes)
                             : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return path != NULL ? PyErr_SetFromErrnoWithFilename(PyExc_OSError, path) : PyErr_SetFromErrno(PyExc_OSError);
    }
    Index *x = (Index *)type->tp_alloc(type, 0);
    if (x == NULL) {
        munmap(map, bytes);
        return NULL;
    }
    x->header = map;
    x->sets = (uint8_t *)map + HEADER_BYTES;
    x->set_bytes = set_bytes;
    x->map_bytes = bytes;
    x->num_sets = num_sets;
    x->num_words = num_words;
    if (!begin(x)) Py_CLEAR(x);
    return (PyObject *)x;
}

static void Index_dealloc(PyObject *self) {
    Index *x = (Index *)self;
    if (x->header != NULL) munmap(x->header, x->map_bytes);
    Py_TYPE(self)->tp_free(self);
}

/* ---- prompts that were sent -------------------------------------------------------------------------------------- */

/* Where blocks end: an array of 32-bit numbers, or any sequence. */
typedef struct {
    Py_buffer view;      /* of the array */
    PyObject *sequence;  /* NULL: it is an array */
    Py_ssize_t num;
} Ends;

static bool open_ends(Ends *ends, PyObject *given) {
    ends->sequence = NULL;
    if (PyObject_CheckBuffer(given)) {
        if (PyObject_GetBuffer(given, &ends->view, PyBUF_FORMAT | PyBUF_ND) < 0) return false;
        ends->num = ends->view.len / 4;
        if (ends->view.format != NULL && strcmp(ends->view.format, "I") == 0 && ends->view.itemsize == 4) return true;
        PyBuffer_Release(&ends->view);
    }
    ends->sequence = PySequence_Fast(given, "ends is a sequence");
    if (ends->sequence == NULL) return false;
    ends->num = PySequence_Fast_GET_SIZE(ends->sequence);
    return true;
}

static long long end_at(const Ends *ends, Py_ssize_t at) {
    if (ends->sequence == NULL) return ((const uint32_t *)ends->view.buf)[at];
    return PyLong_AsLongLong(PySequence_Fast_GET_ITEM(ends->sequence, at));
}

static void close_ends(Ends *ends) {
    if (ends->sequence == NULL) PyBuffer_Release(&ends->view);
    else Py_DECREF(ends->sequence);
}

/* A block, and its neighbours in the order of use. The first of ``all`` is none: its ``newer`` is the block that was
 * used least recently, and its ``older`` the last one. */
typedef struct {
    uint64_t name; /* its bytes as they came */
    long long tokens;
    uint32_t older, newer;
} Used;

typedef struct {
    PyObject_HEAD
    Used *all;
    uint32_t *places; /* by a hash of the name: where the block is in ``all``; 0: free */
    uint32_t num, room, free; /* free: the first unused one, linked by ``newer`` */
    int shift;                /* of the hash: there are 1 << (64 - shift) places, twice as many as blocks have room */
    long long num_tokens;
} UsedBlocks;

enum { FIRST_SHIFT = 64 - 9, LAST_SHIFT = 64 - 31 };

static inline uint32_t home_of(const UsedBlocks *u, uint64_t name) {
    return (uint32_t)((name * 0x9e3779b97f4a7c15u) >> u->shift);
}

/* The place of a name, or the free one that it would take. */
static uint32_t *place_of(const UsedBlocks *u, uint64_t name) {
    uint32_t mask = (uint32_t)((1ull << (64 - u->shift)) - 1), at = home_of(u, name);
    while (u->places[at] != 0 && u->all[u->places[at]].name != name) at = (at + 1) & mask;
    return u->places + at;
}

static void unlink_used(UsedBlocks *u, const Used *block) {
    u->all[block->older].newer = block->newer;
    u->all[block->newer].older = block->older;
}

static void link_last(UsedBlocks *u, uint32_t at) {
    uint32_t last = u->all[0].older;
    u->all[at].older = last;
    u->all[at].newer = 0;
    u->all[last].newer = u->all[0].older = at;
}

/* Make room for twice as many blocks. */
static bool widen(UsedBlocks *u) {
    int shift = u->all == NULL ? FIRST_SHIFT : u->shift - 1;
    size_t num_places = (size_t)1 << (64 - shift), room = num_places / 2;
    uint32_t *places = shift < LAST_SHIFT ? NULL : PyMem_Calloc(num_places, sizeof *places);
    Used *all = places == NULL ? NULL : PyMem_Realloc(u->all, room * sizeof *all);
    if (all == NULL) {
        PyMem_Free(places);
        PyErr_NoMemory();
        return false;
    }
    if (u->all == NULL) all[0] = (Used){0, 0, 0, 0};
    for (size_t at = u->room > 0 ? u->room : 1; at < room; at++) all[at].newer = at + 1 < room ? (uint32_t)at + 1 : 0;
    PyMem_Free(u->places);
    u->free = u->room > 0 ? u->room : 1;
    u->all = all;
    u->places = places;
    u->room = (uint32_t)room;
    u->shift = shift;
    for (uint32_t at = all[0].newer; at != 0; at = all[at].newer) *place_of(u, all[at].name) = at;
    return true;
}

static bool use_block(UsedBlocks *u, uint64_t name, long long tokens) {
    if (u->free == 0 && !widen(u)) return false;
    uint32_t *place = place_of(u, name), at = *place;
    if (at != 0) {
        u->num_tokens -= u->all[at].tokens;
        unlink_used(u, &u->all[at]);
    } else {
        at = *place = u->free;
        u->free = u->all[at].newer;
        u->all[at].name = name;
        u->num++;
    }
    u->all[at].tokens = tokens;
    u->num_tokens += tokens;
    link_last(u, at);
    return true;
}

/* Forget a block; those that stand behind it because its place was taken move up. */
static void forget_block(UsedBlocks *u, uint32_t block) {
    uint32_t mask = (uint32_t)((1ull << (64 - u->shift)) - 1);
    uint32_t hole = (uint32_t)(place_of(u, u->all[block].name) - u->places);
    for (uint32_t at = (hole + 1) & mask; u->places[at] != 0; at = (at + 1) & mask) {
        uint32_t home = home_of(u, u->all[u->places[at]].name);
        if (((at - home) & mask) < ((at - hole) & mask)) continue; /* its home is behind the hole */
        u->places[hole] = u->places[at];
        hole = at;
    }
    u->places[hole] = 0;
    unlink_used(u, &u->all[block]);
    u->num_tokens -= u->all[block].tokens;
    u->num--;
    u->all[block].newer = u->free;
    u->free = block;
}

static uint64_t bytes_at(const char *p) {
    uint64_t name;
    memcpy(&name, p, NAME_BYTES);
    return name;
}

/* use(blocks, ends, num_tokens) */
static PyObject *Used_use(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    UsedBlocks *u = (UsedBlocks *)self;
    if (num_args != 3 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "use takes names of blocks, their ends, and a prompt's tokens");
        return NULL;
    }
    const char *names = PyBytes_AS_STRING(args[0]);
    long long num_tokens = PyLong_AsLongLong(args[2]), until = num_tokens, last = 0;
    if (num_tokens == -1 && PyErr_Occurred()) return NULL;
    Ends ends;
    if (!open_ends(&ends, args[1])) return NULL;
    bool done = ends.num * NAME_BYTES <= PyBytes_GET_SIZE(args[0]);
    if (!done) PyErr_SetString(PyExc_ValueError, "there are more ends than blocks");
    if (done && ends.num > 0) last = end_at(&ends, ends.num - 1);
    for (Py_ssize_t at = ends.num - 1; done && at >= 0; at--) {
        __extension__ typedef __int128 Wide;
        long long end = at > 0 ? end_at(&ends, at - 1) : 0;
        long long start = at > 0 && last > 0 ? (long long)((Wide)num_tokens * end / last) : 0;
        done = use_block(u, bytes_at(names + at * NAME_BYTES), until - start);
        until = start;
    }
    close_ends(&ends);
    return done && !PyErr_Occurred() ? PyLong_FromLongLong(u->num_tokens) : NULL;
}

static bool stands_in(uint64_t name, const char *names, Py_ssize_t bytes) {
    for (; bytes >= NAME_BYTES; names += NAME_BYTES, bytes -= NAME_BYTES) {
        if (bytes_at(names) == name) return true;
    }
    return false;
}

/* Forget blocks, the oldest first: while more than ``most`` tokens are held, then up to ``further`` more. It looks at
 * up to ``looked`` of them, and leaves those among ``kept``. Return the names of those that went. */
static PyObject *forget_oldest(UsedBlocks *u, long long most, uint32_t further, uint32_t looked, PyObject *kept) {
    PyObject *gone = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)looked * NAME_BYTES);
    if (gone == NULL) return NULL;
    char *p = PyBytes_AS_STRING(gone);
    uint32_t at = u->num > 0 ? u->all[0].newer : 0;
    for (uint32_t next; looked > 0 && at != 0; looked--, at = next) {
        if (u->num_tokens <= most && further-- == 0) break;
        next = u->all[at].newer;
        if (kept != NULL && stands_in(u->all[at].name, PyBytes_AS_STRING(kept), PyBytes_GET_SIZE(kept))) continue;
        memcpy(p, &u->all[at].name, NAME_BYTES);
        p += NAME_BYTES;
        forget_block(u, at);
    }
    if (_PyBytes_Resize(&gone, p - PyBytes_AS_STRING(gone)) < 0) return NULL;
    return gone;
}

/* make_room(most, spare_part) */
static PyObject *Used_make_room(PyObject *self, PyObject *args) {
    UsedBlocks *u = (UsedBlocks *)self;
    long long most;
    unsigned int spare_part;
    if (!PyArg_ParseTuple(args, "LI:make_room", &most, &spare_part)) return NULL;
    uint32_t further = spare_part > 0 ? u->num / spare_part : 0;
    return forget_oldest(u, most, further, u->num > 0 ? u->num - 1 : 0, NULL);
}

/* forget(part, kept) */
static PyObject *Used_forget(PyObject *self, PyObject *args) {
    UsedBlocks *u = (UsedBlocks *)self;
    unsigned int part;
    PyObject *kept;
    if (!PyArg_ParseTuple(args, "IS:forget", &part, &kept)) return NULL;
    uint32_t looked = part > 1 ? u->num / part : u->num;
    return forget_oldest(u, -1, 0, looked > 0 ? looked : 1, kept);
}

static Py_ssize_t Used_len(PyObject *self) { return ((UsedBlocks *)self)->num; }

static PyObject *Used_num_tokens(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromLongLong(((UsedBlocks *)self)->num_tokens);
}

static PyObject *Used_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    if (PyTuple_GET_SIZE(args) > 0 || (named != NULL && PyDict_GET_SIZE(named) > 0)) {
        PyErr_SetString(PyExc_TypeError, "UsedBlocks() takes no arguments");
        return NULL;
    }
    PyObject *self = type->tp_alloc(type, 0); /* of zeros: the first use makes room */
    return self;
}

static void Used_dealloc(PyObject *self) {
    PyMem_Free(((UsedBlocks *)self)->all);
    PyMem_Free(((UsedBlocks *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef used_methods[] = {
    {"use", (PyCFunction)(void (*)(void))Used_use, METH_FASTCALL, "Use a prompt's blocks, from its end. The tokens held then."},
    {"make_room", Used_make_room, METH_VARARGS, "Forget the oldest blocks, so that at most so many tokens are held."},
    {"forget", Used_forget, METH_VARARGS, "Forget the oldest part of the blocks, but for some."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef used_getters[] = {
    {"num_tokens", Used_num_tokens, NULL, "Tokens of all blocks.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods used_sequence = {.sq_length = Used_len};

static PyTypeObject UsedBlocksType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "longboat.routing.prefixes._index.UsedBlocks",
    .tp_basicsize = sizeof(UsedBlocks),
    .tp_dealloc = Used_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Blocks with their tokens, in the order in which they were used.",
    .tp_methods = used_methods,
    .tp_getset = used_getters,
    .tp_as_sequence = &used_sequence,
    .tp_new = Used_new,
};

/* ---- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef index_methods[] = {
    {"depths", (PyCFunction)(void (*)(void))Index_depths, METH_FASTCALL, "Leading blocks that each slot holds."},
    {"place", (PyCFunction)(void (*)(void))Index_place, METH_FASTCALL, "Note that a slot holds blocks."},
    {"remove", (PyCFunction)(void (*)(void))Index_remove, METH_FASTCALL, "Note that a slot holds blocks no more."},
    {"clear", Index_clear, METH_O, "Forget all blocks of a slot, which keeps its owner."},
    {"drop", Index_drop, METH_O, "Forget all blocks of a slot, and its owner."},
    {"tidy", Index_tidy, METH_NOARGS, "Clear what dropped slots left behind."},
    {"slot_of", Index_slot_of, METH_O, "The slot of a replica, the same in all processes."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef index_getters[] = {
    {"max_slots", Index_max_slots, NULL, "How many replicas it can tell apart.", NULL},
    {"max_bytes", Index_max_bytes, NULL, "The memory that it takes when it is full.", NULL},
    {"max_blocks", Index_max_blocks, NULL, "How many blocks it has room for.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods index_sequence = {.sq_length = Index_len};

static PyTypeObject IndexType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "longboat.routing.prefixes._index.SharedIndex",
    .tp_basicsize = sizeof(Index),
    .tp_dealloc = Index_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Which replica holds which block.",
    .tp_methods = index_methods,
    .tp_getset = index_getters,
    .tp_as_sequence = &index_sequence,
    .tp_new = Index_new,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "longboat.routing.prefixes._index",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__index(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0 || PyModule_AddType(module, &IndexType) < 0 ||
        PyModule_AddType(module, &UsedBlocksType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
