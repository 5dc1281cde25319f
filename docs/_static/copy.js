"use strict";
// A button on each piece of code copies it. Of a diff it copies what the code becomes.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;
  for (const code of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const isDiff = code.closest(".highlight-diff") !== null;
      const lines = code.textContent.split("\n");
      const kept = isDiff
        ? lines.filter((line) => !line.startsWith("-")).map((line) => line.replace(/^[+ ]/, ""))
        : lines;
      await navigator.clipboard.writeText(kept.join("\n"));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.parentElement.append(button);
  }
});
