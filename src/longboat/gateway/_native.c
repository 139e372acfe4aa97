/* Leaf work of the gateway that each request and each token pays for. native_twin.py says the same in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *scan(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    (void)args;
    if (num_args != 3) {
        PyErr_SetString(PyExc_TypeError, "scan takes body, completions and keyed");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, "What a body asks for, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "longboat.gateway._native", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddIntConstant(module, "INTERFACE", 1) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
