"""Which backends there are beside those of the server itself: the ones that come with it, and installed packages'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from toutates.models.names import FoundNames

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "SHIPPED", "Catalogue", "Shipped"]

#: The entry point group of packages that bring a backend. The entry point's name is the backend's.
GROUP: Final = "toutates.backends"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A backend that comes with the server, and needs a package that an extra of ours installs.

    Attributes:
        target: its class, as ``module:name``.
        package: the module that it needs; "" where that depends on the model.
        extra: of ours, that installs it; "" where there is none.
        files: default names of a model's file, by which the backend is chosen where nothing names it.
    """

    target: str
    package: str
    extra: str
    files: tuple[str, ...] = ()


_ROOM: Final = "toutates.backends.frameworks"
#: By name, in the order in which a version's files are looked for.
SHIPPED: Final[Mapping[str, Shipped]] = MappingProxyType(
    {
        "openvino": Shipped(f"{_ROOM}.openvino:OpenVino", "openvino", "openvino", ("model.xml",)),
        "pytorch": Shipped(f"{_ROOM}.pytorch:PyTorch", "torch", "pytorch", ("model.pt", "model.pt2")),
        "lightgbm": Shipped(f"{_ROOM}.lightgbm:LightGbm", "lightgbm", "lightgbm", ("model.txt",)),
        "xgboost": Shipped(f"{_ROOM}.xgboost:XGBoost", "xgboost", "xgboost", ("xgboost.json", "xgboost.ubj")),
        "sklearn": Shipped(f"{_ROOM}.sklearn:ScikitLearn", "skops", "sklearn", ("model.skops",)),
        "fil": Shipped(f"{_ROOM}.fil:Fil", "", ""),
    }
)


class Catalogue(FoundNames):
    """The names of all backends that can be used, those of packages included.

    Packages are asked for entry points only where nothing else has a name, because that reads the metadata of each.
    """

    def __init__(self, shipped: Mapping[str, Shipped] = SHIPPED) -> None:
        self.shipped = shipped

    @cached_property
    def entry_points(self) -> Mapping[str, EntryPoint]:
        """Those of installed packages, by name; of two with one name the last. Ours come first, whatever others say."""
        from importlib.metadata import entry_points  # which takes 40 ms, and most servers need no package

        found = {point.name: point for point in entry_points(group=GROUP) if point.name not in self.shipped}
        return MappingProxyType(dict(sorted(found.items())))

    def chosen_by(self, files: Sequence[str]) -> str:
        """The backend that a version's files choose; "" if none does.

        Args:
            files: names of what is in the version's directory.
        """
        for name, own in self.shipped.items():
            if any(file in files for file in own.files):
                return name
        suffixes = [file.removeprefix("model.") for file in files if file.startswith("model.")]
        # As with Triton, the default file of any other backend is called after it.
        return next((suffix for suffix in suffixes if suffix in self.entry_points), "") if suffixes else ""

    def __iter__(self) -> Iterator[str]:
        """The names of those whose packages are installed."""
        yield from (name for name, own in self.shipped.items() if not own.package or find_spec(own.package))
        yield from self.entry_points

    def __contains__(self, name: object) -> bool:
        """Whether there is such a backend; also one of ours whose package is not installed."""
        return name in self.shipped or name in self.entry_points
