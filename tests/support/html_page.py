"""What a reader finds on a page."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "hr", "link", "img", "br", "path"}


class HtmlPage(HTMLParser):
    """A page that was read; its tags are balanced.

    Attributes:
        tags: Names of all elements, in their order.
        links: Whatever could load something, or leads somewhere.
        ids: Of elements.
        text: All that is shown.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "srcset"}:
                self.links.append(str(value))
            elif name == "id":
                self.ids.append(str(value))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in {"style", "script"}:
            self.text += data
