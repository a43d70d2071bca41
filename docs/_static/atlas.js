/* Filters the atlas: every word of the search has to be in a row. The filter is kept in the address, to be linked to. */
(() => {
  const atlas = document.getElementById("atlas");
  if (!atlas) return;
  const rows = [...atlas.querySelectorAll("tbody tr")].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const fields = [...atlas.querySelectorAll("[data-by]")];
  const said = atlas.querySelector("output");
  const show = () => {
    const wanted = Object.fromEntries(fields.map((f) => [f.dataset.by, f.value.trim()]));
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { row, text } of rows) {
      const fits =
        words.every((w) => text.includes(w)) &&
        ["library", "task", "verdict"].every((k) => !wanted[k] || row.dataset[k] === wanted[k]);
      row.hidden = !fits;
      count += fits;
    }
    said.textContent = `${count} of ${rows.length}`;
    const query = new URLSearchParams(Object.entries(wanted).filter(([, v]) => v)).toString();
    try {
      history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash);
    } catch (error) {
      /* A page opened from a file may not change its address. */
    }
  };
  const given = new URLSearchParams(location.search);
  for (const field of fields) {
    if (given.has(field.dataset.by)) field.value = given.get(field.dataset.by);
    field.addEventListener("input", show);
  }
  show();
})();
