"""A rendered page as the tests read it."""

from __future__ import annotations

import html.parser
import re

VOID = {"meta", "link", "br", "hr", "img", "input"}
FOREIGN_SELF_CLOSING = {"path", "rect", "circle", "polyline"}


class Page(html.parser.HTMLParser):
    """Checks nesting, collects ids, links, tags and visible text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.attributes, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in FOREIGN_SELF_CLOSING | VOID, tag
        self._note(tag, attrs)

    def _note(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        self.ids += [value for key, value in attrs if key == "id"]

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))
