// Exact values where the pointer is, or where the arrow keys are. Without it the tables behind the pictures say the same.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const parts = "svg.picture :has(> title)";
  let marked = null;

  const words = (part) => {
    const title = part.querySelector(":scope > title");
    if (title) { // or the browser would show it a second time
      part.dataset.tip = title.textContent;
      title.remove();
    }
    return part.dataset.tip || "";
  };
  const show = (part, x, y) => {
    tip.textContent = words(part);
    tip.hidden = !tip.textContent;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  };
  const mark = (part) => {
    if (marked) marked.classList.remove("marked");
    marked = part;
    if (part) part.classList.add("marked");
  };
  const follow = () => {
    const box = marked.getBoundingClientRect();
    show(marked, box.left + box.width / 2, box.bottom - 10);
  };
  const hide = () => { tip.hidden = true; mark(null); };

  addEventListener("pointermove", (event) => {
    const part = event.target.closest && event.target.closest(`${parts}, svg.picture [data-tip]`);
    if (part) show(part, event.clientX, event.clientY);
    else if (!marked) hide();
  });
  // Focus scrolls a picture into view, and tells so after the first arrow key.
  addEventListener("scroll", () => marked ? follow() : hide(), { passive: true });
  for (const svg of document.querySelectorAll("svg.picture[tabindex]")) {
    let at = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") return hide();
      if (!step) return undefined;
      const all = svg.querySelectorAll(":has(> title), [data-tip]");
      if (!all.length) return undefined;
      event.preventDefault();
      at = (at + step + all.length) % all.length;
      mark(all[at]);
      follow();
      return undefined;
    });
    svg.addEventListener("blur", hide);
  }
})();
