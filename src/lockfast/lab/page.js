// The page is whole without this. Here: a sheet that shows one story over the matrix, the filter, arrow keys.
"use strict";
(() => {
  const root = document.documentElement;
  const stories = document.querySelector(".stories");
  const cells = [...document.querySelectorAll("a.cell")];
  const rows = [...document.querySelectorAll("tbody tr")];
  const columns = document.querySelectorAll("colgroup col");
  const chosen = new Set();
  root.classList.add("js");

  // The sheet. The address says which story is open, so links, reload and the back button work.
  const sheet = document.createElement("dialog");
  const bar = sheet.appendChild(document.createElement("nav"));
  const button = (text, label, act) => {
    const made = bar.appendChild(document.createElement("button"));
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  const before = button("← Previous", "Previous cell", () => walk(-1));
  const after = button("Next →", "Next cell", () => walk(1));
  button("Close ✕", "Close", () => sheet.close()).className = "close";
  document.body.append(sheet);

  const open = () => sheet.querySelector("article");
  const key = (cell) => decodeURIComponent(cell.hash.slice(1));
  const cellOf = (article) => cells.find((cell) => key(cell) === article.id);
  const putBack = () => {
    const article = open();
    if (article) stories.append(article);
    return article;
  };

  // Cells that the filter shows, without those that have nothing to tell.
  const shown = () => cells.filter((cell) => !cell.classList.contains("dim") && cell.dataset.verdict !== "na");

  const beside = (step) => {
    const list = shown();
    const here = cells.indexOf(cellOf(open()));
    return step > 0 ? list.find((cell) => cells.indexOf(cell) > here) : list.findLast((cell) => cells.indexOf(cell) < here);
  };
  const walk = (step) => {
    const cell = beside(step);
    if (cell) location.hash = cell.hash;
  };

  const follow = () => {
    let wanted = null;
    try {
      wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    } catch {
      // Not an address of this page.
    }
    if (!wanted || !wanted.matches("article.story")) {
      if (sheet.open) sheet.close();
      return;
    }
    if (open() === wanted && sheet.open) return;
    putBack();
    sheet.append(wanted);
    sheet.setAttribute("aria-labelledby", wanted.getAttribute("aria-labelledby"));
    if (!sheet.open) sheet.showModal();
    sheet.scrollTop = 0;
    before.disabled = !beside(-1);
    after.disabled = !beside(1);
    wanted.focus({ preventScroll: true });
  };

  sheet.addEventListener("close", () => {
    const article = putBack();
    if (!article) return;
    if (location.hash) history.pushState(null, "", location.pathname + location.search);
    const cell = cellOf(article);
    if (cell) land(cell);
  });
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) sheet.close(); // Beside the sheet.
  });
  sheet.addEventListener("keydown", (event) => {
    if (event.target.closest(".scroll") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft") walk(-1);
    if (event.key === "ArrowRight") walk(1);
  });
  addEventListener("hashchange", follow);
  addEventListener("popstate", follow);

  // The filter: none pressed shows all.
  for (const one of document.querySelectorAll(".filter button")) {
    one.disabled = false;
    one.addEventListener("click", () => {
      const verdict = one.dataset.verdict;
      if (!chosen.delete(verdict)) chosen.add(verdict);
      one.setAttribute("aria-pressed", chosen.has(verdict));
      for (const cell of cells) {
        const dim = chosen.size > 0 && !chosen.has(cell.dataset.verdict);
        cell.classList.toggle("dim", dim);
      }
    });
  }

  // One stop for Tab; arrow keys walk from cell to cell.
  const land = (cell) => {
    for (const one of cells) one.tabIndex = one === cell ? 0 : -1;
    cell.focus();
  };
  const place = (cell) => {
    const line = rows.indexOf(cell.closest("tr"));
    return [line, cell.parentElement.cellIndex];
  };
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const table = document.querySelector("table");
  cells.forEach((cell, index) => (cell.tabIndex = index ? -1 : 0));
  table.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    const from = event.target.closest("a.cell");
    if (!step || !from || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    let [line, column] = place(from);
    for (;;) {
      line += step[0];
      column += step[1];
      const field = rows[line]?.cells[column];
      if (!field || column < 1) return;
      const cell = field.querySelector("a.cell");
      if (cell) return land(cell);
    }
  });

  // Which column is it? Headings are far from the lower rows.
  const light = (event) => {
    const cell = event.target.closest("td");
    columns.forEach((column, index) => column.classList.toggle("lit", !!cell && index === cell.cellIndex && index > 0));
  };
  for (const kind of ["pointerover", "focusin"]) table.addEventListener(kind, light);
  table.addEventListener("pointerleave", () => columns.forEach((column) => column.classList.remove("lit")));

  follow();
})();
