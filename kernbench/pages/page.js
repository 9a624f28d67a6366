"use strict";
// The page is complete without this: it sorts tables, and tells values under the mouse.
const number = (cell) => {
  const text = cell.dataset.n ?? cell.textContent;
  return text.trim() === "" ? NaN : Number(text);
};
for (const table of document.querySelectorAll("table")) {
  table.classList.add("sorts");
  const heads = [...table.querySelectorAll("tr.heads th")];
  heads.forEach((head) => {
    head.tabIndex = 0;
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); head.click(); }
    });
  });
  heads.forEach((head, place) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "descending";
    const sign = down || !head.classList.contains("n") && !head.hasAttribute("aria-sort") ? 1 : -1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((one, other) => {
      const [a, b] = [one.cells[place], other.cells[place]];
      const [x, y] = [number(a), number(b)];
      if (isNaN(x) && isNaN(y)) return sign * a.textContent.localeCompare(b.textContent);
      return isNaN(x) ? 1 : isNaN(y) ? -1 : sign * (x - y);
    });
    body.append(...rows);
  }));
}
const scaled = (value, units, step) => {
  let place = 0;
  while (Math.abs(value) >= step && place < units.length - 1) { value /= step; place += 1; }
  return `${Number(value.toPrecision(4))} ${units[place]}`;
};
const tip = document.getElementById("tip");
for (const picture of document.querySelectorAll("svg[data-v]")) {
  const values = picture.dataset.v.split(",").map(Number);
  const [start, end, full] = ["start", "end", "full"].map((name) => Number(picture.dataset[name]));
  const title = picture.querySelector("title");
  if (title) picture.setAttribute("aria-label", title.textContent);
  title?.remove();
  picture.addEventListener("mousemove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    const bin = Math.min(Math.floor(share * values.length), values.length - 1);
    const value = values[bin] / 1000 * full;
    const shown = picture.dataset.unit === "B"
      ? scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024) : `${value.toFixed(1)}%`;
    const time = start + (end - start) * bin / values.length;
    tip.textContent = `${shown} at ${scaled(time, ["ps", "ns", "us", "ms", "s"], 1000)}`;
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  picture.addEventListener("mouseleave", () => { tip.hidden = true; });
}
// What scrolls can be reached by keys.
const reach = () => {
  for (const wide of document.querySelectorAll(".wide")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0; else wide.removeAttribute("tabindex");
  }
};
addEventListener("resize", reach);
for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", reach);
setTimeout(reach);
// What is folded is printed, too.
const folds = document.getElementsByTagName("details");
addEventListener("beforeprint", () => {
  for (const fold of folds) if (!fold.open) { fold.open = true; fold.dataset.shut = ""; }
});
addEventListener("afterprint", () => {
  for (const fold of folds) if ("shut" in fold.dataset) { fold.open = false; delete fold.dataset.shut; }
});
