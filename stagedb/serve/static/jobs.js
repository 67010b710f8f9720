// Loads the jobs that run again and again. Without it a page has those of the moment when it was loaded.
"use strict";
const PAUSE = 4000;
for (const area of document.querySelectorAll("[data-live]")) {
  const count = document.getElementById(area.dataset.count);
  const load = async () => {
    // A page that nobody sees, and a job that somebody reads with the keyboard, stay as they are.
    if (!document.hidden && !area.contains(document.activeElement)) {
      try {
        const answer = await fetch(area.dataset.live);
        if (answer.ok) show(area, count, await answer.text());
      } catch {
        // The server is away: the next round asks again.
      }
    }
    setTimeout(load, PAUSE);
  };
  setTimeout(load, PAUSE);
}

function show(area, count, text) {
  const made = new DOMParser().parseFromString(text, "text/html").body;
  if (made.innerHTML.trim() === area.innerHTML.trim()) return;
  area.replaceChildren(...made.childNodes);
  const running = area.querySelectorAll(".jobs > li").length;
  const words = running ? `${running} job${running === 1 ? "" : "s"} running.` : "Nothing runs.";
  // A screen reader gets a change of the number, and no step of a bar.
  if (count && count.textContent !== words) count.textContent = words;
  const section = area.closest("[data-when]");
  if (section) section.hidden = !running;
}
