// What a list of plans does beyond links and forms: marks tick their rows, and the button counts the ticks.
"use strict";
{
  const MOST = 8;
  const ticks = [...document.querySelectorAll('.plan-list input[name="of"]')];
  const button = document.querySelector("#compare button"), note = document.querySelector("#compare small");
  const count = () => {
    const ticked = ticks.filter((each) => each.checked).length;
    button.disabled = ticked < 2 || ticked > MOST;
    note.textContent = ticked ? `${ticked} ticked${ticked > MOST ? `, at most ${MOST}` : ""}` : "the two to eight that are ticked";
  };
  for (const tick of ticks) tick.addEventListener("change", count);
  const marks = new Map();
  for (const link of document.querySelectorAll('.plans-chart a[href^="#row-"]')) {
    const row = document.getElementById(link.getAttribute("href").slice(1));
    if (!row) continue;
    marks.set(row, link);
    // The address leads to the row; the mark ticks it, and a second click takes the tick away.
    link.addEventListener("click", () => {
      const tick = row.querySelector('input[name="of"]');
      tick.checked = !tick.checked;
      count();
    });
    for (const [name, on] of [["pointerenter", true], ["pointerleave", false]]) {
      row.addEventListener(name, () => link.classList.toggle("near", on));
      link.addEventListener(name, () => row.classList.toggle("near", on));
    }
  }
  for (const field of document.querySelectorAll(".chart-fields select")) {
    field.addEventListener("change", () => field.form.requestSubmit());
  }
  if (button) { count(); addEventListener("pageshow", count); }
}
