// The filter of the ledger. What it shows is part of the page's address; without this script every row is shown.
const form = document.getElementById("ledger-filter");
const rows = [...document.querySelectorAll(".ledger-rows tbody tr")];
const shadows = [...document.querySelectorAll("tr[data-claim]")]; // the same rows, source by source
const groups = [...document.querySelectorAll(".ledger-group")];
const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
const status = form.querySelector("[role=status]");
const fields = [...form.elements].filter((field) => field.name);
let announce;

const apply = () => {
  const wanted = fields.filter((field) => field.value && field.name !== "words");
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = new Set();
  for (const row of rows) {
    const fits = wanted.every((field) => row.dataset[field.name] === field.value);
    row.hidden = !fits || !words.every((word) => texts.get(row).includes(word));
    if (!row.hidden) shown.add(row.id);
  }
  for (const row of shadows) row.hidden = !shown.has(row.dataset.claim);
  for (const group of groups) group.hidden = !group.querySelector("tbody tr:not([hidden])");
  // said once the reader has stopped typing
  clearTimeout(announce);
  announce = setTimeout(() => { status.textContent = `${shown.size} of ${rows.length} rows shown`; }, 150);
};

const remember = () => {
  const query = new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.name, field.value])).toString();
  history.replaceState(null, "", location.pathname + (query ? "?" + query : "") + location.hash);
};

const read = (query) => {
  for (const field of fields) {
    field.value = query.get(field.name) ?? "";
    if (field.selectedIndex === -1) field.value = ""; // an address that names what is not there
  }
  apply();
};

// A link to a row shows it, whatever the filter says.
const reveal = () => {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!row || !texts.has(row)) return;
  if (row.hidden) {
    read(new URLSearchParams());
    remember();
  }
  row.querySelector("details")?.setAttribute("open", "");
  row.scrollIntoView();
};

form.addEventListener("input", () => { apply(); remember(); });
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(() => { apply(); remember(); }));
for (const link of document.querySelectorAll("a.ledger-query")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    read(new URL(link.href).searchParams);
    remember();
    form.scrollIntoView();
    form.elements.verdict.focus({ preventScroll: true });
  });
}
addEventListener("hashchange", reveal);

form.hidden = false;
read(new URLSearchParams(location.search));
reveal();
