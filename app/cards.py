"""Tables and lists of pages that show results, and the style of such pages.

It owns their HTML, in which every text is escaped, and a style sheet; colours are the variables of
`app.theme`. It does not know what is shown.
"""

from collections.abc import Sequence
from html import escape

__all__ = ["SHEET", "bullets", "table"]


def table(
    captions: Sequence[str], head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1
) -> str:
    """A table in a card; wide ones scroll under their caption.

    Args:
        captions: lines above the table.
        head: names of the columns.
        rows: a row's first cell names it.
        words: how many columns, from the left, hold words; the others hold numbers.
    """
    top = "".join(
        f"<th scope='col'{_side(k, words)}>{escape(text)}</th>" for k, text in enumerate(head)
    )
    body = []
    for name, *cells in rows:
        tail = "".join(
            f"<td{_side(k, words)}>{escape(text)}</td>" for k, text in enumerate(cells, start=1)
        )
        body.append(f"<tr><th scope='row'>{escape(name)}</th>{tail}</tr>")
    label = escape(" ".join(captions))
    return (
        f'<div class="gbx-table">{"".join(f"<p>{escape(line)}</p>" for line in captions)}'
        f'<div tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></div>"
    )


def bullets(lines: Sequence[str]) -> str:
    """A list of plain sentences."""
    return f'<ul class="gbx-list">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _side(place: int, words: int) -> str:
    return ' class="gbx-words"' if place < words else ""


SHEET = """
.gbx-tag{display:inline-block;font-size:11px;font-weight:650;letter-spacing:.04em;
  color:var(--gbx-muted);border:1px dashed var(--gbx-muted);border-radius:999px;padding:2px 10px}
.gbx-table{border:1px solid var(--gbx-line);border-radius:12px;background:var(--gbx-card);
  padding:10px 14px 12px;min-width:0}
.gbx-table>p{font-size:12px;line-height:1.5;color:var(--gbx-muted);margin:0 0 4px}
.gbx-table>div{overflow-x:auto}
.gbx-table table{border-collapse:collapse;width:100%;font-size:13px;color:var(--gbx-text);
  font-variant-numeric:tabular-nums;margin:0}
.gbx-table th,.gbx-table td{padding:5px 10px;border:0;border-bottom:1px solid var(--gbx-line);
  text-align:right;white-space:nowrap;font-weight:400}
.gbx-table thead th{font-size:11.5px;color:var(--gbx-muted);vertical-align:bottom;
  white-space:normal;min-width:62px}
.gbx-table .gbx-words,.gbx-table tbody th{text-align:left}
.gbx-table tbody th{font-weight:650}
.gbx-table tbody tr:last-child>*{border-bottom:0}
.gbx-list{margin:0;padding-left:18px;font-size:13px;line-height:1.55;color:var(--gbx-text)}
.gbx-part{font-size:16px;font-weight:650;color:var(--gbx-text);margin:14px 0 0;padding:0;
  display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline}
.gbx-part span{font-size:12px;font-weight:400;color:var(--gbx-muted)}
[class*="st-key-gbx-card-"]{border:1px solid var(--gbx-line);border-radius:12px;
  background:var(--gbx-card);padding:10px 16px 12px}
"""
