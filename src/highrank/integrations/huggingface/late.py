"""Registration of our models where transformers is imported after this package."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

# The module with the list of configurations that Auto classes know.
MODULE = "transformers.models.auto.configuration_auto"
FINDERS: list[Any] = sys.meta_path


class RegisteringFinder:
    """Finds one module, as the other finders do, and calls a function when it is loaded."""

    def __init__(self, register: Callable[[], None]) -> None:
        self.register = register

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname != MODULE:
            return None
        FINDERS.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.register()

            loader.exec_module = exec_module
        return spec


def when_loaded(register: Callable[[], None]) -> None:
    """Call the function as soon as transformers has its list of configurations, perhaps now."""
    if sys.modules.get(MODULE) is not None:
        register()
    elif not any(isinstance(finder, RegisteringFinder) for finder in FINDERS):
        FINDERS.insert(0, RegisteringFinder(register))
