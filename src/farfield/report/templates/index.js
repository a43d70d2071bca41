"use strict";
(function () {
  var table = document.getElementById("models");
  var tools = document.getElementById("tools");
  if (!table || !tools) { return; }
  var body = table.tBodies[0];
  var rows = Array.prototype.slice.call(body.rows);
  var words = rows.map(function (row) { return row.dataset.search.toLowerCase(); });
  var field = document.getElementById("search");
  var buttons = Array.prototype.slice.call(tools.querySelectorAll("button"));
  var count = document.getElementById("shown");
  var wanted = "all";

  function filter() {
    var parts = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    var shown = 0;
    rows.forEach(function (row, i) {
      var verdict = wanted === "all" || row.dataset.verdict === wanted ||
        (wanted === "failed" && row.dataset.failed === "yes");
      var on = verdict && parts.every(function (part) { return words[i].indexOf(part) >= 0; });
      row.hidden = !on;
      shown += on ? 1 : 0;
    });
    count.textContent = shown + " of " + rows.length + " shown";
  }

  tools.hidden = false;
  field.addEventListener("input", filter);
  tools.addEventListener("click", function (event) {
    var button = event.target.closest("button");
    if (!button) { return; }
    wanted = button.value;
    buttons.forEach(function (other) { other.setAttribute("aria-pressed", String(other === button)); });
    filter();
  });

  // Numbers by size, texts by the reader's alphabet; what is not there comes last either way; equals keep their order.
  function sort(column, numeric, down) {
    var keyed = rows.map(function (row, i) {
      var cell = row.cells[column];
      var text = cell.dataset.key === undefined ? cell.textContent.trim() : cell.dataset.key;
      return { row: row, i: i, none: text === "", key: numeric ? Number(text) : text };
    });
    var letters = new Intl.Collator(undefined, { numeric: true });
    keyed.sort(function (a, b) {
      if (a.none !== b.none) { return a.none ? 1 : -1; }
      var order = a.none ? 0 : numeric ? a.key - b.key : letters.compare(a.key, b.key);
      return (down ? -order : order) || a.i - b.i;
    });
    var pieces = document.createDocumentFragment();
    keyed.forEach(function (item) { pieces.appendChild(item.row); });
    body.appendChild(pieces);
  }

  var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
  heads.forEach(function (head, column) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.textContent = "";
    head.appendChild(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(column, head.dataset.numeric === "yes", down);
    });
  });
  filter();
}());
