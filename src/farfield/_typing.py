"""Names for annotations: array shapes that are checked under test and cost nothing at run time.

``Float[Tensor, "n n"]`` reads as *a floating tensor with two equal axes*. A type checker sees
``Tensor``. At run time the subscript returns ``Tensor`` too, unless ``FARFIELD_CHECK_SHAPES=1`` is set
(the test suite sets it): then jaxtyping's checked types take their place and an import hook verifies every
call. jaxtyping is a test dependency only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
elif os.environ.get("FARFIELD_CHECK_SHAPES") == "1":
    from jaxtyping import Bool, Float, Int
else:

    class _Shape:
        def __class_getitem__(cls, item: Any) -> Any:
            return item[0]

    Bool = Float = Int = _Shape

__all__ = ["JSON", "Bool", "Float", "Int"]

JSON: TypeAlias = "dict[str, Any] | list[Any] | str | int | float | bool | None"
"""Plain data, as ``json.dumps`` takes it."""
