"""HTML and SVG as text: `tag` escapes what it holds, so that a name or an answer of a model is never read as markup."""

from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; `class_` stands for `class`, `data_key` for `data-key`; attributes of None are left out."""
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(given)}>{joined(*children)}</{name}>")


def joined(*children: object) -> Markup:
    """Return elements and texts one after the other; texts are escaped."""
    return Markup("".join(each if isinstance(each, Markup) else escape(str(each)) for each in children))
