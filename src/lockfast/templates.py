"""Names made from a function's arguments, for the decorator: "invoice:{invoice_id}"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Part = str | int


def binder(function: Callable[..., Any], parts: tuple[Part, ...]) -> Callable[..., tuple[Part, ...]]:
    """A callable that turns a call's arguments into the parts of a name.

    Each part is a `str.format` template of the function's parameters; write {{ and }} for braces. Raises ValueError
    at once if a part names something that is not a parameter.
    """
    import inspect
    import string

    signature = inspect.signature(function)
    templated = False
    for part in parts:
        if not isinstance(part, str):
            continue
        try:
            fields = list(string.Formatter().parse(part))
        except ValueError as error:
            raise ValueError(f"{part!r} is not a template: {error} (write {{{{ and }}}} for braces)") from None
        for _, field, _, _ in fields:
            if field is None:
                continue
            templated = True
            parameter = field.partition(".")[0].partition("[")[0]
            if parameter not in signature.parameters:
                raise ValueError(
                    f"{part!r} names {parameter!r}, which is no parameter of {function.__qualname__}{signature}"
                )
    if not templated:
        fixed = tuple(part.format() if isinstance(part, str) else part for part in parts)
        return lambda *_args, **_kwargs: fixed

    def bind(*args: Any, **kwargs: Any) -> tuple[Part, ...]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(part.format(**bound.arguments) if isinstance(part, str) else part for part in parts)

    return bind
