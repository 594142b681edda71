"""Builds the native library of softtopk.kernels; all metadata is in pyproject.toml.

The library is optional. Where it cannot be compiled the installation succeeds all the same, and
the reason is left beside the Python files, for `softtopk info` to tell. SOFTTOPK_BUILD_NATIVE
decides: "try" (the default), "require" (a failure is an error) or "skip".
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError, LinkError

VARIABLE = "SOFTTOPK_BUILD_NATIVE"
KERNELS = Path("src", "softtopk", "kernels")
NAME = "softtopk.kernels._native"
REASON = "_not_built.txt"  # softtopk.kernels reads it

# The sources choose the instruction set at run time: no -march here. Nor anything that lets the
# compiler reorder sums (-ffast-math): the kernels decide in which order they add.
GNU_COMPILE = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
]
GNU_LINK = ["-pthread", *(["-ldl"] if sys.platform == "linux" else [])]
MSVC_COMPILE = ["/std:c++17", "/O2", "/EHsc"]


class BuildNative(build_ext):
    """Compiles a shared library with a C interface: no Python module, though it is built as one."""

    def get_ext_filename(self, fullname):
        # Without the interpreter's tag: the library does not depend on Python.
        suffix = ".dll" if sys.platform == "win32" else ".so"
        return os.path.join(*fullname.split(".")) + suffix

    def get_export_symbols(self, ext):
        return []  # there is no PyInit function; the sources mark what they export

    def build_extension(self, ext):
        msvc = self.compiler.compiler_type == "msvc"
        ext.extra_compile_args = MSVC_COMPILE if msvc else GNU_COMPILE
        ext.extra_link_args = [] if msvc else GNU_LINK
        super().build_extension(ext)

    def run(self):
        wish = os.environ.get(VARIABLE) or "try"
        if wish not in ("try", "require", "skip"):
            sys.exit(f"{VARIABLE} must be try, require or skip, not {wish!r}")
        library = Path(self.build_lib, self.get_ext_filename(NAME))
        if self.inplace:
            library = KERNELS / library.name
        library.with_name(REASON).unlink(missing_ok=True)
        try:
            if wish == "skip":
                self._do_without(library, f"{VARIABLE}=skip")
            else:
                super().run()
        except (BaseError, CCompilerError, OSError) as error:
            if wish == "require":
                raise
            self._do_without(library, self._explain(error))

    def _explain(self, error):
        command = getattr(self.compiler, "compiler_so_cxx", None)
        if command and shutil.which(command[0]) is None:
            return f"no C++ compiler found at installation: there is no {command[0]}"
        if isinstance(error, (CompileError, LinkError)):  # which quote a command of many lines
            return f"{command[0] if command else 'the compiler'} failed; pip install -v shows why"
        return str(error)

    def _do_without(self, library, reason):
        library.unlink(missing_ok=True)  # of an earlier build
        library.parent.mkdir(parents=True, exist_ok=True)
        library.with_name(REASON).write_text(reason + "\n", encoding="utf-8")
        self.warn(
            f"the native library was not built ({reason}); softtopk works without it, by plain "
            "PyTorch operations that give the same results"
        )
        # Later steps do not look for the file then, and the wheel is one for any platform.
        self.extensions = self.distribution.ext_modules = []


class Wheel(bdist_wheel):
    """One wheel per platform for every version of Python; one for all without the library."""

    def run(self):
        # Whether there is a library is known after the build, and has to be known before the rest.
        self.run_command("build")
        self.skip_build = True
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[
        Extension(
            NAME,
            sources=sorted(path.as_posix() for path in KERNELS.glob("csrc/*.cpp")),
            depends=["setup.py", *sorted(path.as_posix() for path in KERNELS.glob("csrc/*.hpp"))],
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": Wheel},
)
