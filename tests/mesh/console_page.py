"""The console's page as tests use it: signing in, choosing runs, reading the chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.doubles.devtools import Page

OPTIONS = "document.querySelectorAll('#runs [role=option]').length"

# Every visible text whose contrast with what lies behind it is under AA: 4.5, or 3 for large ones.
FAINT = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const faint = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, box = element.getBoundingClientRect();
    const text = walker.currentNode.textContent.trim();
    if (!text || !box.width || element.closest(':disabled, .skip')) continue;
    const style = getComputedStyle(element);
    const own = rgba(element.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const pair = [light(own), light(behind(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05), size = parseFloat(style.fontSize);
    const enough = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700) ? 3 : 4.5;
    seen += 1;
    if (ratio < enough) faint.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return {seen, faint};
})()"""


class ConsolePage:
    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.address = f"{base_url}/console"

    def open(self) -> ConsolePage:
        self.page.open(self.address)
        self.page.until("!document.getElementById('sign-in').hidden")
        return self

    def sign_in(self, key: str) -> None:
        """As by hand: the field has the focus."""
        self.page.type(key)
        self.page.press("Enter")

    def signed_in(self, key: str, runs: int) -> ConsolePage:
        self.open()
        self.sign_in(key)
        self.page.until(f"{OPTIONS} === {runs} && document.getElementById('freshness').textContent === 'Up to date'")
        return self

    def view(self, name: str) -> None:
        self.page.value(f"document.querySelector('[data-view={name}]').click()")
        self.page.until(f"!document.getElementById('view-{name}').hidden")

    def choose(self, run_id: str, *, add: bool = False) -> None:
        part = ".swatch" if add else ".name"
        self.page.value(f"document.querySelector({json.dumps(f'[data-run={json.dumps(run_id)}] {part}')}).click()")
        self.page.until(f"{self._curve(run_id)} !== null")

    def measure(self, name: str) -> None:
        self.page.value(
            f"(() => {{ const field = document.getElementById('measure'); field.value = {json.dumps(name)};"
            " field.dispatchEvent(new Event('change')); })()"
        )

    def points(self, run_id: str) -> list[dict[str, Any]]:
        """step, value and place of each mark of a run's curve."""
        found: list[dict[str, Any]] = self.page.value(
            f"[...{self._curve(run_id)}.querySelectorAll('circle')].map((mark) => ({{"
            "step: Number(mark.dataset.step), value: Number(mark.dataset.value),"
            "x: Number(mark.getAttribute('cx')), y: Number(mark.getAttribute('cy'))}))"
        )
        return found

    def api_calls(self) -> Sequence[str]:
        self.page.value("0")  # whatever was told meanwhile is read now
        return [address for address in self.page.requests if "/console/api/" in address]

    def focused(self) -> str:
        """What has the focus, by id, view or name."""
        return str(
            self.page.value(
                "(() => { const at = document.activeElement;"
                " return at.id || at.dataset.view || at.className || at.tagName.toLowerCase(); })()"
            )
        )

    def focus_is_visible(self) -> bool:
        shown = "(() => { const style = getComputedStyle(document.activeElement);"
        return bool(
            self.page.value(
                shown + " return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2; })()"
            )
        )

    def _curve(self, run_id: str) -> str:
        return f"document.querySelector({json.dumps(f'#chart [data-run={json.dumps(run_id)}]')})"
