/* Names of a prompt's blocks, from the bytes of a request's body in one pass.
 *
 * A body is JSON that was read before: this pass looks for the members that make the prompt, cuts them into blocks and
 * hashes these in a chain. White space between JSON's tokens does not count. Media (long base64 text) counts by its
 * hash. Whatever the pass cannot read gives None. See docs/concepts/prefixes.md for the rules of the cuts.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INTERFACE 2 /* as prefix_names.py expects it */

enum {
    BLOCK_BYTES = 512,          /* of the first MiB of a prompt; twice as many with each doubling beyond */
    FIRST_BYTES = 1024 * 1024,
    MAX_SHIFT = 7,
    CUTS_OF_ANY_SIZE = 1024,    /* blocks after which the end of a message cuts only blocks that are half full */
    MAX_FIELDS = 16,
    MAX_DEPTH = 512,
    MEDIA_BYTES = 1024,         /* the least length of a text that counts as media */
    MEDIA_WEIGHT = 4000,        /* bytes of text that an image, a sound or a file stands for */
    NAME_BYTES = 8,
    KEPT_BLOCKS = 4096, /* for which there is room from one prompt to the next */
};

/* ---- the hash: wyhash's mixing, with the parent's name in the last step ------------------------------------------ */

static const uint64_t SECRET[4] = {0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu, 0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u};

static inline uint64_t mix(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    Wide product = (Wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t read8(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline uint64_t read4(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static uint64_t hash_bytes(const uint8_t *p, size_t bytes, uint64_t parent) {
    uint64_t seed = parent ^ mix(parent ^ SECRET[0], SECRET[1]), a = 0, b = 0;
    size_t left = bytes;
    if (bytes > 16) {
        if (left >= 48) {
            uint64_t second = seed, third = seed;
            for (; left >= 48; p += 48, left -= 48) {
                seed = mix(read8(p) ^ SECRET[1], read8(p + 8) ^ seed);
                second = mix(read8(p + 16) ^ SECRET[2], read8(p + 24) ^ second);
                third = mix(read8(p + 32) ^ SECRET[3], read8(p + 40) ^ third);
            }
            seed ^= second ^ third;
        }
        for (; left > 16; p += 16, left -= 16) seed = mix(read8(p) ^ SECRET[1], read8(p + 8) ^ seed);
        a = read8(p + left - 16);
        b = read8(p + left - 8);
    } else if (bytes >= 4) {
        size_t middle = (bytes >> 3) << 2;
        a = read4(p) << 32 | read4(p + middle);
        b = read4(p + bytes - 4) << 32 | read4(p + bytes - 4 - middle);
    } else if (bytes > 0) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[bytes >> 1] << 8 | p[bytes - 1];
    }
    uint64_t last = mix(a ^ SECRET[1], b ^ seed);
    uint64_t name = mix(last ^ SECRET[0] ^ bytes, parent ^ SECRET[2]);
    return name > 1 ? name : name + 2; /* the index keeps 0 and 1 for itself */
}

/* ---- the blocks -------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t parent; /* name of the block before */
    uint64_t bytes;  /* hashed, or waiting in ``block`` */
    uint64_t weight; /* bytes, where media counts as MEDIA_WEIGHT */
    size_t fill, size;
    uint8_t *names;
    uint32_t *ends;
    size_t num, room;
    uint8_t block[BLOCK_BYTES << MAX_SHIFT];
} Sink;

static size_t block_size(uint64_t bytes) {
    int shift = 0;
    while (shift < MAX_SHIFT && bytes >= (uint64_t)FIRST_BYTES << shift) shift++;
    return (size_t)BLOCK_BYTES << shift;
}

static bool end_block(Sink *s) {
    if (s->num == s->room) {
        size_t room = s->room ? 2 * s->room : 256;
        uint8_t *names = PyMem_Realloc(s->names, room * NAME_BYTES);
        if (names != NULL) s->names = names;
        uint32_t *ends = PyMem_Realloc(s->ends, room * sizeof *ends);
        if (ends != NULL) s->ends = ends;
        if (names == NULL || ends == NULL) return false;
        s->room = room;
    }
    s->parent = hash_bytes(s->block, s->fill, s->parent);
    uint64_t name = s->parent;
    for (int i = 0; i < NAME_BYTES; i++, name >>= 8) s->names[s->num * NAME_BYTES + (size_t)i] = (uint8_t)name;
    s->ends[s->num++] = s->weight > UINT32_MAX ? UINT32_MAX : (uint32_t)s->weight;
    s->fill = 0;
    s->size = block_size(s->bytes);
    return true;
}

static bool put(Sink *s, const uint8_t *p, size_t bytes) {
    while (bytes > 0) {
        size_t part = s->size - s->fill;
        if (part > bytes) part = bytes;
        memcpy(s->block + s->fill, p, part);
        s->fill += part;
        s->bytes += part;
        s->weight += part;
        p += part;
        bytes -= part;
        if (s->fill == s->size && !end_block(s)) return false;
    }
    return true;
}

/* The end of a message: the next one begins a block of its own. */
static bool cut(Sink *s) {
    if (s->fill == 0 || (s->num >= CUTS_OF_ANY_SIZE && s->fill < s->size / 2)) return true;
    return end_block(s);
}

static bool put_media(Sink *s, const uint8_t *p, size_t bytes) {
    uint64_t digest = hash_bytes(p, bytes, 0);
    uint8_t text[NAME_BYTES];
    for (int i = 0; i < NAME_BYTES; i++, digest >>= 8) text[i] = (uint8_t)digest;
    s->weight += MEDIA_WEIGHT - NAME_BYTES;
    return put(s, text, NAME_BYTES);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static inline const uint8_t *after_space(const uint8_t *p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++; /* the NUL at the end is none */
    return p;
}

/* The quote that ends the string whose content begins at p; NULL where there is none. */
static const uint8_t *string_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *quote = NULL;
    while (p < end) {
        if (quote == NULL || quote < p) quote = memchr(p, '"', (size_t)(end - p));
        if (quote == NULL) return NULL;
        const uint8_t *slash = memchr(p, '\\', (size_t)(quote - p));
        if (slash == NULL) return quote;
        p = slash + 2; /* an escape */
    }
    return NULL;
}

static inline bool is_mark(uint8_t c) {
    return c == ',' || c == ':' || c == ']' || c == '}' || c == '[' || c == '{' || c == '"' || c <= ' ';
}

static bool is_media(const uint8_t *text, size_t bytes, bool is_data) {
    return bytes >= MEDIA_BYTES && (is_data || memcmp(text, "data:", 5) == 0);
}

/* Pass one value, and put it into the sink if there is one. The byte after it; NULL where it cannot be read. */
static const uint8_t *pass_value(const uint8_t *p, const uint8_t *end, Sink *s) {
    bool is_data = false; /* the value of a member called ``data`` comes */
    int depth = 0;
    do {
        p = after_space(p);
        if (p >= end) return NULL;
        const uint8_t *from = p;
        if (*p == '"') {
            const uint8_t *quote = string_end(p + 1, end);
            if (quote == NULL) return NULL;
            size_t bytes = (size_t)(quote - p) - 1;
            p = quote + 1;
            if (s != NULL && is_media(from + 1, bytes, is_data)) {
                if (!put_media(s, from + 1, bytes)) return NULL;
            } else if (s != NULL && !put(s, from, bytes + 2)) {
                return NULL;
            }
            is_data = depth > 0 && bytes == 4 && memcmp(from + 1, "data", 4) == 0 && *after_space(p) == ':';
            continue;
        }
        if (*p == '{' || *p == '[') {
            if (++depth > MAX_DEPTH) return NULL;
            p++;
        } else if (*p == '}' || *p == ']') {
            if (--depth < 0) return NULL;
            p++;
        } else if (*p == ',' || *p == ':') {
            if (depth == 0) return NULL;
            p++;
        } else {
            while (p < end && !is_mark(*p)) p++;
            if (p == from) return NULL; /* a control character */
        }
        if (*from != ':') is_data = false;
        if (s != NULL && !put(s, from, (size_t)(p - from))) return NULL;
    } while (depth > 0);
    return p;
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *name;
    Py_ssize_t bytes;
    const uint8_t *value; /* NULL: not in the body */
    const uint8_t *end;
} Field;

/* Find the fields in the body's object. False where the body is not a plain object, or a field stands twice. */
static bool find_fields(const uint8_t *p, const uint8_t *end, Field *fields, Py_ssize_t num) {
    p = after_space(p);
    if (*p++ != '{') return false;
    p = after_space(p);
    if (*p == '}') return true;
    for (;;) {
        if (*p != '"') return false;
        const uint8_t *key = p + 1, *quote = string_end(key, end);
        if (quote == NULL || memchr(key, '\\', (size_t)(quote - key)) != NULL) return false;
        p = after_space(quote + 1);
        if (*p++ != ':') return false;
        const uint8_t *value = after_space(p);
        p = pass_value(value, end, NULL);
        if (p == NULL) return false;
        for (Py_ssize_t i = 0; i < num; i++) {
            if (fields[i].bytes != quote - key || memcmp(fields[i].name, key, (size_t)(quote - key)) != 0) continue;
            if (fields[i].value != NULL) return false;
            fields[i].value = value;
            fields[i].end = p;
        }
        p = after_space(p);
        if (*p == '}') return true;
        if (*p++ != ',') return false;
        p = after_space(p);
    }
}

/* Put a list: each element ends a block. False also where it holds several prompts. */
static bool put_list(Sink *s, const Field *field) {
    const uint8_t *p = after_space(field->value + 1);
    bool is_of_prompts = *p == '"' || *p == '[';
    for (int i = 0;; i++) {
        if (is_of_prompts && i > 0) return false;
        p = pass_value(p, field->end, s);
        if (p == NULL || !cut(s)) return false;
        p = after_space(p);
        if (*p == ']') return true;
        if (*p++ != ',') return false;
        p = after_space(p);
    }
}

static bool is_empty(const Field *field) {
    if (field->value == NULL || *field->value == 'n') return true;
    return *field->value == '[' && *after_space(field->value + 1) == ']';
}

static bool put_field(Sink *s, const Field *field) {
    if (is_empty(field)) return true;
    if (!put(s, field->name, (size_t)field->bytes)) return false;
    uint8_t first = *field->value == '[' ? *after_space(field->value + 1) : 0;
    if (first == '{' || first == '"' || first == '[') return put_list(s, field);
    return pass_value(field->value, field->end, s) != NULL && cut(s);
}

static bool read_fields(PyObject *names, Field *fields) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        char *name;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(names, i), &name, &fields[i].bytes) < 0) return false;
        fields[i].name = (const uint8_t *)name;
        fields[i].value = NULL;
    }
    return true;
}

static PyObject *result_of(Sink *s) {
    PyObject *names = PyBytes_FromStringAndSize((const char *)s->names, (Py_ssize_t)(s->num * NAME_BYTES));
    PyObject *ends = PyTuple_New((Py_ssize_t)s->num);
    for (size_t at = 0; ends != NULL && at < s->num; at++) {
        PyObject *end = PyLong_FromUnsignedLong(s->ends[at]);
        if (end == NULL) Py_CLEAR(ends);
        else PyTuple_SET_ITEM(ends, (Py_ssize_t)at, end);
    }
    PyObject *result = names != NULL && ends != NULL ? PyTuple_New(2) : NULL;
    if (result != NULL) {
        PyTuple_SET_ITEM(result, 0, names);
        PyTuple_SET_ITEM(result, 1, ends);
        return result;
    }
    Py_XDECREF(names);
    Py_XDECREF(ends);
    return NULL;
}

/* prefix_names(body, fields, seed) */
static PyObject *prefix_names(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 3 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[1]) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "prefix_names takes bytes, a tuple of bytes, and bytes");
        return NULL;
    }
    Py_ssize_t num = PyTuple_GET_SIZE(args[1]);
    if (num > MAX_FIELDS) return PyErr_Format(PyExc_ValueError, "at most %d fields, not %zd", MAX_FIELDS, num);
    Field fields[MAX_FIELDS];
    if (!read_fields(args[1], fields)) return NULL;
    const uint8_t *body = (const uint8_t *)PyBytes_AS_STRING(args[0]), *end = body + PyBytes_GET_SIZE(args[0]);
    if (!find_fields(body, end, fields, num)) Py_RETURN_NONE;
    static Sink only; /* the lock of the interpreter is held throughout */
    Sink *s = &only;
    s->bytes = s->weight = 0;
    s->fill = s->num = 0;
    s->size = BLOCK_BYTES;
    s->parent = hash_bytes((const uint8_t *)PyBytes_AS_STRING(args[2]), (size_t)PyBytes_GET_SIZE(args[2]), 0);
    bool done = true;
    for (Py_ssize_t i = 0; done && i < num; i++) done = put_field(s, &fields[i]);
    if (done && s->fill > 0) done = end_block(s);
    PyObject *result = done ? result_of(s) : Py_NewRef(Py_None);
    if (s->room > KEPT_BLOCKS) {
        PyMem_Free(s->names);
        PyMem_Free(s->ends);
        s->names = NULL;
        s->ends = NULL;
        s->room = 0;
    }
    return result;
}

static PyMethodDef methods[] = {
    {"prefix_names", (PyCFunction)(void (*)(void))prefix_names, METH_FASTCALL, "Names and ends of a prompt's blocks, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "longboat.gateway.native._prefixes",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__prefixes(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) Py_CLEAR(module);
    return module;
}
