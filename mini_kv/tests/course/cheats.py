"""Ways to get points without the work, each a file for lab-05: what `mini-kv class grade` must not fall for."""

SOLVED = """
from mini_kv.course import todo

def ref_counts(kv, request):
    (table,) = kv.get_blocks(request.request_id).blocks
    return [block.ref_cnt for block in table]

def prefill(kv, token_ids, request_id):
    todo("lab-05", "prefill", "everything")

def cache_hit_rate(kv):
    todo("lab-05", "cache_hit_rate", "everything")
"""
"""An honest beginning: what the cheats below stand on, worth `HONEST` points."""

WALK = """
def _frames():
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        yield frame
        frame = frame.f_back
"""

REFUSED = {
    "leaves at once, with success": "import os\nos._exit(0)\n",
    "leaves when Python ends": "import atexit, os\natexit.register(os._exit, 0)\n",
    "patches pytest": "import _pytest.runner\n_pytest.runner.call_runtest_hook = lambda *a, **k: None\n",
    "skips the tests": "import pytest\npytest.skip(allow_module_level=True)\n",
    "patches the comparison": "from mini_kv.course.labkit import fixture\nfixture.same = lambda want, got: True\n",
    "patches expect": (
        "from mini_kv.course.labkit.fixture import LabUnderTest\nLabUnderTest.expect = lambda *a, **k: None\n"
    ),
    "edits the scoreboard": (
        "from mini_kv.course.labkit import scoreboard\nscoreboard.LabResult.score = property(lambda r: r.points)\n"
    ),
    "takes the scenario's prefill": "from mini_kv.story.scenario import prefill\n",
    "reads the solution": "exec(open('solutions/lab-05/solution.py').read())\n",
    "loads the solution": "import importlib\nimportlib.import_module('solutions')\n",
    "writes to others": "import pathlib\nfor p in pathlib.Path('..').rglob('*.py'): p.write_text('')\n",
    "forges JUnit's file": "open('junit.xml', 'w').write('<testsuite failures=\"0\"/>')\n",
    "writes into every pipe": (
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'{\"end\": true}\\n')\n    except OSError: pass\n"
    ),
    "finds the results in memory": (
        "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'LabResult': o.state = 'pass'\n"
    ),
    "finds the test in the frames": WALK + "for frame in _frames(): frame.f_globals.clear()\n",
    "a module through a module": "import dataclasses\ndataclasses.sys.exit(0)\n",
    "a name that is put together": "x = getattr(todo, '__glo' + 'bals__')\n",
    "a name in a pattern": "match todo:\n    case object(__globals__=g):\n        g.clear()\n",
    "all subclasses": "for c in object.__subclasses__(): pass\n",
    "starts a shell": "import subprocess\nsubprocess.run('kill -9 -1', shell=True)\n",
    "calls C": "import ctypes\nctypes.string_at(0)\n",
    "forks without end": "import os\nwhile True: os.fork()\n",
    "takes its class apart": "for f in type(todo).mro(): pass\n",
    "changes the engine": "from mini_kv.core.request import Request\nRequest.num_tokens = 0\n",
    "another word for it": "from mini_kv.core.request import Request\nR = Request\nR.num_tokens = 0\n",
    "evaluates a type": "import typing\ntyping.get_type_hints(todo)\n",
    "a field through a formatter": "import string\nstring.Formatter().get_field('0.x', [todo], {})\n",
    "Python's builtins under another name": "import enum\nenum.bltns.getattr(todo, 'x')\n",
    "an annotation that is run": "import functools\n@functools.singledispatch\ndef f(x: str): pass\n",
    "a field's name that is run": "from dataclasses import dataclass\nclass A:\n    __annotations__ = {'x=1': int}\n",
    "an attribute that is copied": "import functools\nfunctools.update_wrapper(todo, prefill)\n",
    "a stream that is no stream": "import contextlib\nclass R(contextlib.redirect_stdout): _stream = 'modules'\n",
    "a key that names the inside": "{}['__builtins__']\n",
    "imports beside itself": "from . import conftest\n",
    "a private function that runs text": "from dataclasses import _create_fn\n",
    "a module beside the one that is free": "from json import tool\ntool.Path('x').write_text('')\n",
    "the harness's own modules": "from mini_kv.course.labkit import lab\nlab.Path('x').write_text('')\n",
    "a module that is handed around": "import dataclasses\n(dataclasses or 0)._create_fn\n",
    "a module's own import": "import dataclasses\ndataclasses.FunctionType\n",
    "a type that is run": (
        "import typing\nt = typing.get_args(typing.List['print (1)'])[0]\nt._evaluate({}, {}, frozenset())\n"
    ),
    "a pattern's names made by a decorator": (
        "class P:\n    @lambda f: ('__glo' + 'bals__',)\n    def __match_args__(self): pass\n"
    ),
    "a pattern's names bound by a pattern": "class P:\n    match ('gi_frame',):\n        case __match_args__: pass\n",
    "a pattern's names from a tuple": (
        "import collections\nclass P(collections.namedtuple('Q', 'gi_frame')): pass\n"
        "match todo:\n    case P(frame): frame.clear()\n"
    ),
    "a name bound by an import": "class P:\n    from math import pi as __match_args__\n",
    "a copy that sets attributes": (
        "import copy\nclass E:\n    def __reduce_ex__(self, n): return (lambda: todo, (), (None, {'x': 1}))\n"
        "copy.copy(E())\n"
    ),
    "a comparison that keeps the type": (
        "class C:\n    def __eq__(self, other): self.got = other\ntype(todo) == C()\n"
    ),
    "a comparison that keeps the type, with an argument": (
        "class C(list):\n    def __eq__(self, other): self.append(other)\ntype(todo) == C([])\n"
    ),
    "a metaclass": "class A(metaclass=lambda name, bases, inside: inside): pass\n",
    "a metaclass of the library's": "from typing import ABCMeta\nX = ABCMeta('X', (), {})\n",
    "a field's name in a typed dict": (
        "import typing, dataclasses\ndataclasses.dataclass(typing.TypedDict('T', {'x=print(1)': int}))\n"
    ),
    "a field's name that is changed": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\n(f,) = dataclasses.fields(A)\n"
        "f.name = 'x=print(1)'\n@dataclasses.dataclass\nclass B(A): pass\n"
    ),
    "the engine's class made a dataclass": (
        "from dataclasses import dataclass as d\nfrom mini_kv.core.request import Request\n"
        "d(init=False, repr=False)(Request)\n"
    ),
    "a slot of the engine's class": "from mini_kv.core.block import KVCacheBlock as B\nB.ref_cnt = 1\n",
    "a coroutine's code": "async def f(): return todo.x\nf().cr_code.replace(co_names=('y',))\n",
    "a file through the licence": "license._Printer__filenames = ['/etc/passwd']\nlicense()\n",
    "a module through the help": "help('os')\n",
    "a frame through a text": "def g(): yield ('{0.gi_' + 'frame.f_back}').format(x)\nx = g()\nnext(x)\n",
    "a text that is formatted by a map": "'{x.gi_frame}'.format_map({'x': 1})\n",
    "changes a table of the engine's": "from mini_kv.core.request import Request\nRequest.x['y'] = 0\n",
    "the tests' own prefill": "def prefill(kv, token_ids, request_id):\n    return kv.hold(token_ids, request_id), 0\n",
    "another encoding": "# coding: utf-7\n+AGkAbQBwAG8AcgB0- os\n",
}
"""Held before they run, by what stands in the file."""

RUN = {
    "ends Python with success": "raise SystemExit(0)\n",
    "an object that equals all": (
        "class Equal:\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def ref_counts(kv, request): return Equal()\ndef cache_hit_rate(kv): return Equal()\n"
    ),
    "a list that equals all": (
        "class Equal(list):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def ref_counts(kv, request): return Equal()\ndef cache_hit_rate(kv): return True\n"
    ),
    "a loop without end": "while True: pass\n",
    "all memory": "x = [0] * 10**12\n",
    "memory, a bit at a time": "x = []\nwhile True: x.append('x' * 10**7)\n",
    "endless output": "while True: print('x' * 10**6)\n",
    "no Python": "def prefill(:\n",
    "a recursion": "def f(): return f()\nf()\n",
    "raises what nothing catches": "class Out(BaseException): pass\nraise Out\n",
}
"""Run behind the walls, and worth what is right in them: nothing, or what the honest beginning is worth."""

WITH_TORCH = {
    "compiles C++": "from torch.utils.cpp_extension import load_inline\n",
    "downloads code": "import torch.hub as h\nh.load('a/b', 'c')\n",
    "starts processes": "import torch\ntorch.multiprocessing.spawn(print)\n",
    "reads a pickle": "import torch\ntorch.load('x')\n",
    "writes a file": "import torch\ntorch.save([], 'x')\n",
    "writes a file through numpy": "import torch\ntorch.zeros(1).numpy().tofile('x')\n",
    "takes the inside": "from torch._C import Node\n",
}
"""For a lab that needs PyTorch: held as well."""

SPIES = {
    "lab-02": "def popleft(self):\n    block = self.blocks.pop(0)\n    block.watch.seen.clear()\n    return block\n",
    "lab-04": "def hash_block_tokens(hash_function, *rest):\n    del hash_function.returned[1:]\n",
    "lab-07": "def find_longest_cache_hit(self, *rest):\n    self.block_pool.num_asked = 4\n",
    "lab-12": "def find_longest_cache_hit(self, *rest):\n    self.block_pool.index.asked.clear()\n",
}
"""Code that resets what a lab's tests count."""

ENGINES = {
    "super under another name": (
        "    def free(self, request):\n        engines = super()\n        return engines.free(request)\n",
        "uses super for more than a method",
    ),
    "super by a text": (
        "    def free(self, request): return getattr(super(), 'free')(request)\n",
        "lets the engine answer: super().free",
    ),
    "the base under another name": (
        "    def free(self, request): return Base.free(self, request)\nBase = engine.KVCacheManager\n",
        "lets the engine answer: Base.free",
    ),
    "a second class": (
        "    def free(self, request): return Second.free(self, request)\nclass Second(engine.KVCacheManager): pass\n",
        "lets the engine answer: Second.free",
    ),
    "a method that is taken away again": (
        "    def free(self, request): pass\n    del free\n",
        "deletes free",
    ),
    "a method that is taken away afterwards": (
        "    def free(self, request): pass\ndel KVCacheManager.free\n",
        "deletes free",
    ),
    "another class of the name": (
        "    def free(self, request): pass\nclass Second(engine.KVCacheManager): pass\nKVCacheManager = Second\n",
        "rebinds KVCacheManager",
    ),
    "a decorator that gives another class": (
        "    x = 1\n@lambda own: Second\nclass KVCacheManager(Second):\n    def free(self, request): pass\n",
        "rebinds KVCacheManager",
    ),
    "a pattern that takes the method": (
        "    def free(self, request):\n        match engine.KVCacheManager:\n"
        "            case object(free=engines): engines(self, request)\n",
        "lets the engine answer: free",
    ),
    "a module that is handed around": (
        "    def free(self, request): return [engine][0].KVCacheManager.free(self, request)\n",
        "passes mini_kv.core.kv_cache_manager on",
    ),
}
"""Methods for lab-06's class that ask the engine, and what the look says of each."""
