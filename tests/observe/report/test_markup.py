"""What comes from elsewhere is escaped, what is markup is not."""

from __future__ import annotations

from everstep.observe.report.markup import Markup, escape, tag


def test_text_and_attributes_are_escaped() -> None:
    assert tag("p", "<b>", title='a"b') == '<p title="a&quot;b">&lt;b&gt;</p>'


def test_markup_is_not_escaped_again() -> None:
    assert tag("p", tag("b", "x"), Markup("<i></i>")) == "<p><b>x</b><i></i></p>"
    assert tag("b", "x") + "<" == "<b>x</b>&lt;"


def test_characters_that_no_document_may_hold_are_replaced() -> None:
    assert escape("a\x1b\x00\ud800b") == "a\ufffd\ufffd\ufffdb"


def test_attributes_are_named_as_in_html() -> None:
    assert tag("rect", class_="a", data_x=0.0, y=1.25, rx=None, hidden=True) == (
        '<rect class="a" data-x="0" y="1.25" hidden></rect>'
    )


def test_elements_without_an_end_have_none() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
