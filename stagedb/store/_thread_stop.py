"""Stops a thread of the virtual machine in this process, through its tool interface (JVMTI).

Nothing of stagedb is imported, as in `_engine.py`.
"""

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_JNI_VERSION, _TOOL_VERSION = 0x0001_0008, 0x3001_0200

# Places of functions in the tables of the specifications: of the machine, of JNI, and of JVMTI.
_GET_ENVIRONMENT = 6
_FIND_CLASS, _PUSH_FRAME, _POP_FRAME, _NEW_OBJECT, _METHOD, _NEW_TEXT, _CLEAR = 6, 19, 20, 30, 33, 167, 17
_ALL_THREADS, _STOP, _THREAD_INFO, _FREE, _ADD_CAPABILITIES = 3, 6, 8, 46, 141

_MAY_STOP = 10
"""The bit of `can_signal_thread` in the capabilities."""

_ERROR = b"java/lang/IllegalStateException"


class _ThreadInfo(ctypes.Structure):
    """jvmtiThreadInfo."""

    _fields_ = (
        ("name", _POINTER),
        ("priority", _INT),
        ("is_daemon", ctypes.c_ubyte),
        ("group", _POINTER),
        ("loader", _POINTER),
    )


class Unavailable(Exception):
    """The virtual machine does not offer the interface that stops threads."""


def prepare() -> None:
    """Find the virtual machine now. Later, it may have no memory for that. Raises Unavailable."""
    _machine()


def stop_thread(name: str, reason: str) -> bool:
    """Throw an error with the text `reason` in the thread of this name, wherever it is. False if there is none.

    The calling thread must be one that the virtual machine knows. Raises Unavailable.
    """
    machine = _machine()
    jni, tools = (_environment(machine, version) for version in (_JNI_VERSION, _TOOL_VERSION))
    wanted = (ctypes.c_uint8 * 16)()
    wanted[_MAY_STOP // 8] = 1 << _MAY_STOP % 8
    _checked(_call(tools, _ADD_CAPABILITIES, _INT, ctypes.byref(wanted)))
    _checked(_call(jni, _PUSH_FRAME, _INT, _INT(64)))
    try:
        return _stop(jni, tools, name.encode(), reason.encode("ascii"))
    finally:
        _call(jni, _POP_FRAME, _POINTER, _POINTER())


def _stop(jni: Any, tools: Any, name: bytes, reason: bytes) -> bool:
    thread = _thread(tools, name)
    if thread is None:
        return False
    kind = _POINTER(_call(jni, _FIND_CLASS, _POINTER, ctypes.c_char_p(_ERROR)))
    constructor = _call(
        jni, _METHOD, _POINTER, kind, ctypes.c_char_p(b"<init>"), ctypes.c_char_p(b"(Ljava/lang/String;)V")
    )
    text = _call(jni, _NEW_TEXT, _POINTER, ctypes.c_char_p(reason))
    values = (ctypes.c_uint64 * 1)(text or 0)
    error = _call(jni, _NEW_OBJECT, _POINTER, kind, _POINTER(constructor), ctypes.byref(values))
    if not (kind and constructor and text and error):
        _call(jni, _CLEAR, None)
        raise Unavailable("the virtual machine is out of memory")
    return bool(_call(tools, _STOP, _INT, _POINTER(thread), _POINTER(error)) == 0)


def _thread(tools: Any, name: bytes) -> int | None:
    """The reference of the thread of a name."""
    count, threads = _INT(), ctypes.POINTER(_POINTER)()
    _checked(_call(tools, _ALL_THREADS, _INT, ctypes.byref(count), ctypes.byref(threads)))
    try:
        for place in range(count.value):
            info = _ThreadInfo()
            if _call(tools, _THREAD_INFO, _INT, _POINTER(threads[place]), ctypes.byref(info)) != 0:
                continue  # the thread has ended
            found = ctypes.string_at(info.name) == name
            _call(tools, _FREE, _INT, _POINTER(info.name))
            if found:
                return int(threads[place] or 0) or None
        return None
    finally:
        _call(tools, _FREE, _INT, threads)


@cache
def _machine() -> Any:
    import jpype

    # `jpype.java.lang` would list the packages of the whole virtual machine, for a fifth of the time of a start.
    system: Any = jpype.JClass("java.lang.System")
    library = Path(str(system.getProperty("java.home"))) / "lib" / "server"
    name = {"darwin": "libjvm.dylib", "win32": "jvm.dll"}.get(sys.platform, "libjvm.so")
    try:
        find = ctypes.CDLL(str(library / name)).JNI_GetCreatedJavaVMs
    except (OSError, AttributeError) as error:
        raise Unavailable(str(error)) from None
    machine, count = _POINTER(), _INT()
    _checked(find(ctypes.byref(machine), 1, ctypes.byref(count)))
    if count.value != 1:
        raise Unavailable("no virtual machine runs in this process")
    return machine


def _environment(machine: Any, version: int) -> Any:
    found = _POINTER()
    _checked(_call(machine, _GET_ENVIRONMENT, _INT, ctypes.byref(found), _INT(version)))
    return found


def _call(table: Any, place: int, result: Any, *arguments: Any) -> Any:
    """Call a function of a table, whose owner is its first argument."""
    functions = ctypes.cast(ctypes.cast(table, ctypes.POINTER(_POINTER))[0], ctypes.POINTER(_POINTER))
    kinds = [_POINTER if type(each).__name__ in ("CArgObject",) else type(each) for each in arguments]
    return ctypes.CFUNCTYPE(result, _POINTER, *kinds)(functions[place])(table, *arguments)


def _checked(status: int) -> None:
    if status != 0:
        raise Unavailable(f"the virtual machine answers {status}")
