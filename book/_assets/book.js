// What is wider than the text scrolls in its own box, and the keyboard can reach it, at every width of the window
// and also once the formulas are set.
const mark = () => {
  for (const formula of document.querySelectorAll("main mjx-container:not([display])")) {
    formula.classList.remove("wide");
    formula.classList.toggle("wide", formula.getBoundingClientRect().width > formula.parentElement.clientWidth);
  }
  for (const box of document.querySelectorAll("mjx-container, .pst-scrollable-table-container, .output, pre")) {
    const scrolls = getComputedStyle(box).overflowX === "auto" && box.scrollWidth > box.clientWidth;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
new ResizeObserver(mark).observe(document.body);
window.MathJax?.startup?.promise?.then(mark);

// The search shows a passage of each page that it finds, which it must fetch; a browser refuses that on a book opened from disk.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
