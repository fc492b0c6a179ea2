for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const figures = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    // Figures begin with the largest, words with the first letter; again turns it round.
    const up = before ? before === "descending" : !figures;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[column];
      return figures ? (cell.dataset.sort === undefined ? NaN : Number(cell.dataset.sort)) : cell.textContent;
    };
    const order = (a, b) => figures ? a - b : a.localeCompare(b, "en", { numeric: true });
    const empty = (value) => value === "" || Number.isNaN(value);
    body.append(...[...body.rows].sort((one, two) => {
      const [a, b] = [key(one), key(two)];
      if (empty(a) || empty(b)) return empty(a) - empty(b); // what isn't there stays at the end
      return up ? order(a, b) : order(b, a);
    }));
  }));
}
