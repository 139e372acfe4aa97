/* One span in OTLP's binary encoding, from the values that Python has of it.
 *
 * Field numbers: opentelemetry/proto/trace/v1/trace.proto of opentelemetry-proto 1.x. The encoding:
 * https://protobuf.dev/programming-guides/encoding/. Names come encoded: they are the same for each span.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INTERFACE 1 /* as span_encoding.py expects it */

enum {
    HEADER_BYTES = 11, /* a tag, and the longest length behind it */
    FIRST_BYTES = 1024,
    ERROR = 2, /* of a status */
    NUM_ARGS = 13,
};

enum { TRACE_ID = 1, SPAN_ID, TRACESTATE, PARENT_ID, NAME, KIND, BEGAN, ENDED, ATTRIBUTE, EVENT = 11, STATUS = 15 };

typedef struct {
    uint8_t *bytes;
    size_t used, room;
    uint8_t first[FIRST_BYTES];
} Out;

/* Where ``more`` bytes may be written; NULL without memory. They count as written. */
static uint8_t *extend(Out *out, size_t more) {
    if (out->room - out->used < more) {
        size_t room = 2 * out->room + more;
        uint8_t *bytes = PyMem_Realloc(out->bytes == out->first ? NULL : out->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (out->bytes == out->first) memcpy(bytes, out->first, out->used);
        out->bytes = bytes;
        out->room = room;
    }
    out->used += more;
    return out->bytes + out->used - more;
}

static size_t varint_bytes(uint64_t number) {
    size_t bytes = 1;
    for (; number >= 0x80; number >>= 7) bytes++;
    return bytes;
}

static uint8_t *put_varint(uint8_t *p, uint64_t number) {
    for (; number >= 0x80; number >>= 7) *p++ = (uint8_t)(number | 0x80);
    *p++ = (uint8_t)number;
    return p;
}

static uint8_t *put_fixed64(uint8_t *p, uint64_t number) {
    for (int i = 0; i < 8; i++, number >>= 8) *p++ = (uint8_t)number;
    return p;
}

static uint8_t *put_big_endian(uint8_t *p, uint64_t number) {
    for (int i = 56; i >= 0; i -= 8) *p++ = (uint8_t)(number >> i);
    return p;
}

static uint8_t *put_head(uint8_t *p, int field, size_t bytes) {
    *p++ = (uint8_t)(field << 3 | 2);
    return put_varint(p, bytes);
}

static uint8_t *put_bytes(uint8_t *p, const void *from, size_t bytes) {
    memcpy(p, from, bytes);
    return p + bytes;
}

/* The bytes of a text, valid as long as *held; what UTF-8 cannot carry becomes question marks. */
static const char *text_of(PyObject *text, Py_ssize_t *bytes, PyObject **held) {
    *held = NULL;
    const char *found = PyUnicode_AsUTF8AndSize(text, bytes);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return found;
    PyErr_Clear();
    *held = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (*held == NULL) return NULL;
    *bytes = PyBytes_GET_SIZE(*held);
    return PyBytes_AS_STRING(*held);
}

static bool put_text(Out *out, int field, PyObject *text) {
    PyObject *held;
    Py_ssize_t bytes;
    const char *found = text_of(text, &bytes, &held);
    uint8_t *p = found == NULL ? NULL : extend(out, 1 + varint_bytes((uint64_t)bytes) + (size_t)bytes);
    if (p != NULL) put_bytes(put_head(p, field, (size_t)bytes), found, (size_t)bytes);
    Py_XDECREF(held);
    return p != NULL;
}

static bool put_id(Out *out, int field, uint64_t id) {
    uint8_t *p = extend(out, 10);
    if (p != NULL) put_big_endian(put_head(p, field, 8), id);
    return p != NULL;
}

static bool put_time(Out *out, int field, uint64_t ns) {
    uint8_t *p = extend(out, 9);
    if (p == NULL) return false;
    *p++ = (uint8_t)(field << 3 | 1);
    put_fixed64(p, ns);
    return true;
}

/* An attribute. name: its encoded name; value: a text or an integer */
static bool put_attribute(Out *out, PyObject *name, PyObject *value) {
    size_t name_bytes = (size_t)PyBytes_GET_SIZE(name);
    if (PyUnicode_Check(value)) {
        PyObject *held;
        Py_ssize_t size;
        const char *text = text_of(value, &size, &held);
        size_t bytes = (size_t)size;
        if (text == NULL) return false;
        size_t told = 1 + varint_bytes(bytes) + bytes, all = name_bytes + 1 + varint_bytes(told) + told;
        uint8_t *p = extend(out, 1 + varint_bytes(all) + all);
        if (p != NULL) {
            p = put_bytes(put_head(p, ATTRIBUTE, all), PyBytes_AS_STRING(name), name_bytes);
            put_bytes(put_head(put_head(p, 2, told), 1, bytes), text, bytes);
        }
        Py_XDECREF(held);
        return p != NULL;
    }
    uint64_t number = PyLong_AsUnsignedLongLongMask(value);
    if (number == (uint64_t)-1 && PyErr_Occurred()) return false;
    size_t told = 1 + varint_bytes(number), all = name_bytes + 2 + told;
    uint8_t *p = extend(out, 1 + varint_bytes(all) + all);
    if (p == NULL) return false;
    p = put_bytes(put_head(p, ATTRIBUTE, all), PyBytes_AS_STRING(name), name_bytes);
    p = put_head(p, 2, told);
    *p++ = 3 << 3;
    put_varint(p, number);
    return true;
}

static bool put_attributes(Out *out, PyObject *names, PyObject *values) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        if (value != Py_None && !put_attribute(out, PyTuple_GET_ITEM(names, i), value)) return false;
    }
    return true;
}

/* Nanoseconds of a moment, which is told in seconds after another one. */
static bool at_ns(double since_s, PyObject *after_s, uint64_t *ns) {
    double seconds = PyFloat_AsDouble(after_s);
    if (seconds == -1.0 && PyErr_Occurred()) return false;
    *ns = (uint64_t)llrint((since_s + seconds) * 1e9);
    return true;
}

/* Events. names: encoded; moments: seconds after since_s, or None */
static bool put_events(Out *out, PyObject *names, PyObject *moments, double since_s) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(moments); i++) {
        PyObject *moment = PyTuple_GET_ITEM(moments, i), *name = PyTuple_GET_ITEM(names, i);
        uint64_t ns;
        if (moment == Py_None) continue;
        if (!at_ns(since_s, moment, &ns)) return false;
        size_t name_bytes = (size_t)PyBytes_GET_SIZE(name), all = 9 + name_bytes;
        uint8_t *p = extend(out, 1 + varint_bytes(all) + all);
        if (p == NULL) return false;
        p = put_head(p, EVENT, all);
        *p++ = 1 << 3 | 1;
        put_bytes(put_fixed64(p, ns), PyBytes_AS_STRING(name), name_bytes);
    }
    return true;
}

static bool put_error(Out *out, PyObject *error) {
    PyObject *held;
    Py_ssize_t size;
    if (PyUnicode_GET_LENGTH(error) == 0) return true;
    const char *text = text_of(error, &size, &held);
    if (text == NULL) return false;
    size_t bytes = (size_t)size, all = 1 + varint_bytes(bytes) + bytes + 2;
    uint8_t *p = extend(out, 1 + varint_bytes(all) + all);
    if (p != NULL) {
        p = put_bytes(put_head(put_head(p, STATUS, all), 2, bytes), text, bytes);
        *p++ = 3 << 3;
        *p = ERROR;
    }
    Py_XDECREF(held);
    return p != NULL;
}

static bool put_kind_and_flags(Out *out, uint64_t kind, uint32_t flags) {
    uint8_t *p = extend(out, 8);
    if (p == NULL) return false;
    *p++ = KIND << 3;
    *p++ = (uint8_t)kind;
    *p++ = 0x85; /* field 16, of 32 bits */
    *p++ = 0x01;
    for (int i = 0; i < 4; i++, flags >>= 8) *p++ = (uint8_t)flags;
    return true;
}

/* args: as span_encoding.py says */
static bool put_span(Out *out, PyObject *const *args) {
    uint64_t span_id = PyLong_AsUnsignedLongLongMask(args[1]), parent_id = PyLong_AsUnsignedLongLongMask(args[2]);
    uint64_t kind = PyLong_AsUnsignedLongLongMask(args[5]), flags = PyLong_AsUnsignedLongLongMask(args[6]), began, ended;
    double since_s = PyFloat_AsDouble(args[7]);
    if (PyErr_Occurred() || !at_ns(since_s, PyTuple_GET_ITEM(args[8], 0), &began)) return false;
    if (!at_ns(since_s, PyTuple_GET_ITEM(args[8], 1), &ended)) return false;
    uint8_t *p = extend(out, 18);
    if (p == NULL) return false;
    put_bytes(put_head(p, TRACE_ID, 16), PyBytes_AS_STRING(args[0]), 16);
    size_t state_bytes = (size_t)PyBytes_GET_SIZE(args[3]);
    if (state_bytes != 0) {
        p = extend(out, 1 + varint_bytes(state_bytes) + state_bytes);
        if (p == NULL) return false;
        put_bytes(put_head(p, TRACESTATE, state_bytes), PyBytes_AS_STRING(args[3]), state_bytes);
    }
    return put_id(out, SPAN_ID, span_id) && (parent_id == 0 || put_id(out, PARENT_ID, parent_id)) &&
           put_text(out, NAME, args[4]) && put_kind_and_flags(out, kind, (uint32_t)flags) &&
           put_time(out, BEGAN, began) && put_time(out, ENDED, ended) &&
           put_attributes(out, PyTuple_GET_ITEM(args[9], 0), args[10]) &&
           put_events(out, PyTuple_GET_ITEM(args[9], 1), args[11], since_s) && put_error(out, args[12]);
}

static bool are_valid(PyObject *const *args, Py_ssize_t num_args) {
    if (num_args != NUM_ARGS || !PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != 16) return false;
    if (!PyBytes_Check(args[3]) || !PyUnicode_Check(args[4]) || !PyUnicode_Check(args[12])) return false;
    if (!PyTuple_Check(args[8]) || PyTuple_GET_SIZE(args[8]) != 2) return false;
    if (!PyTuple_Check(args[9]) || PyTuple_GET_SIZE(args[9]) != 2) return false;
    for (int i = 0; i < 2; i++) { /* names, and as many values */
        PyObject *names = PyTuple_GET_ITEM(args[9], i), *values = args[10 + i];
        if (!PyTuple_Check(names) || !PyTuple_Check(values)) return false;
        if (PyTuple_GET_SIZE(names) != PyTuple_GET_SIZE(values)) return false;
        for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(names); at++) {
            if (!PyBytes_Check(PyTuple_GET_ITEM(names, at))) return false;
        }
    }
    return true;
}

static PyObject *span_field(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (!are_valid(args, num_args)) {
        PyErr_SetString(PyExc_TypeError, "span_field takes what longboat.gateway.native.span_encoding says");
        return NULL;
    }
    Out out = {.used = HEADER_BYTES, .room = FIRST_BYTES};
    out.bytes = out.first;
    PyObject *field = NULL;
    if (put_span(&out, args)) {
        size_t bytes = out.used - HEADER_BYTES, head = 1 + varint_bytes(bytes);
        put_head(out.bytes + HEADER_BYTES - head, 2, bytes); /* of the spans of a scope */
        field = PyBytes_FromStringAndSize((char *)out.bytes + HEADER_BYTES - head, (Py_ssize_t)(head + bytes));
    }
    if (out.bytes != out.first) PyMem_Free(out.bytes);
    return field;
}

static PyMethodDef methods[] = {
    {"span_field", (PyCFunction)(void (*)(void))span_field, METH_FASTCALL, "One span of a scope, encoded."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "longboat.gateway.native._spans",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__spans(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) Py_CLEAR(module);
    return module;
}
