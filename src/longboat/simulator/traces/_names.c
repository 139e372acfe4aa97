/* The names of a prompt's blocks: a chain of splitmix64, as ``chained`` in block_names.py has it for one block.
 *
 * Traces have tens of blocks a request, and in Python each takes as long as all that the simulation does with it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

static uint64_t mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

static PyObject *chain(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args) {
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "chain(blocks, name)");
        return NULL;
    }
    uint64_t name = PyLong_AsUnsignedLongLongMask(args[1]);
    if (PyErr_Occurred()) return NULL;
    PyObject *blocks = PySequence_Fast(args[0], "blocks must be whole numbers");
    if (blocks == NULL) return NULL;
    Py_ssize_t num = PySequence_Fast_GET_SIZE(blocks);
    PyObject *names = PyBytes_FromStringAndSize(NULL, 8 * num);
    unsigned char *to = names != NULL ? (unsigned char *)PyBytes_AS_STRING(names) : NULL;
    for (Py_ssize_t i = 0; to != NULL && i < num; i++) {
        uint64_t block = PyLong_AsUnsignedLongLongMask(PySequence_Fast_GET_ITEM(blocks, i));
        if (PyErr_Occurred()) {
            Py_CLEAR(names);
            break;
        }
        name = mix(3 * name + mix(block));
        for (int shift = 0; shift < 64; shift += 8) *to++ = (unsigned char)(name >> shift);
    }
    Py_DECREF(blocks);
    return names;
}

static PyMethodDef methods[] = {
    {"chain", (PyCFunction)(void (*)(void))chain, METH_FASTCALL, "Names of blocks from what they hold."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "longboat.simulator.traces._names",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__names(void) { return PyModule_Create(&definition); }
