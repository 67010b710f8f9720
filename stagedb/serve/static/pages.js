// What pages do beyond links and forms. Every page works without it.
"use strict";
for (const area of document.querySelectorAll("textarea")) {
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) area.form.requestSubmit();
  });
}
for (const form of document.querySelectorAll("form[method=get]")) {
  // An address has only the words that were given.
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
}
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll(":disabled")) field.disabled = false;
});
document.documentElement.dataset.ready = "yes";
