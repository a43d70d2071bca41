"use strict";
(function () {
  // The box under the pointer or the keyboard: its facts below the drawing, its arrows in another color.
  var caption = document.getElementById("box-caption");
  var boxes = Array.prototype.slice.call(document.querySelectorAll("svg .box"));
  var links = document.querySelectorAll("svg .link");
  var rest = caption ? caption.textContent : "";
  function show(box) {
    if (caption) { caption.textContent = box ? box.getAttribute("aria-label") : rest; }
    links.forEach(function (link) {
      link.classList.toggle("lit", !!box && (link.dataset.from === box.id || link.dataset.to === box.id));
    });
  }
  boxes.forEach(function (box, i) {
    box.setAttribute("tabindex", i === 0 ? "0" : "-1");
    box.addEventListener("mouseenter", function () { show(box); });
    box.addEventListener("mouseleave", function () { show(null); });
    box.addEventListener("focus", function () { show(box); });
    box.addEventListener("blur", function () { show(null); });
    box.addEventListener("keydown", function (event) {
      var step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      var next = step && boxes[i + step];
      if (!next) { return; }
      event.preventDefault();
      box.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  });
  // Rules by outcome.
  var bar = document.getElementById("rule-filters");
  if (bar) {
    bar.hidden = false;
    bar.addEventListener("click", function (event) {
      var button = event.target.closest("button");
      if (!button) { return; }
      bar.querySelectorAll("button").forEach(function (other) {
        other.setAttribute("aria-pressed", String(other === button));
      });
      document.querySelectorAll("#rules tbody tr").forEach(function (row) {
        row.hidden = button.value !== "all" && row.dataset.outcome !== button.value;
      });
    });
  }
  // On paper nothing of a finding stays folded.
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll(".card details").forEach(function (part) { part.open = true; });
  });
}());
