// Buttons that copy a table: to the clipboard, or where the page may not, into a text area with all of it selected.
for (const bar of document.querySelectorAll(".copy")) {
  bar.hidden = false;
  const told = bar.querySelector("[role=status]");
  for (const button of bar.querySelectorAll("button")) {
    button.addEventListener("click", async () => {
      const area = document.getElementById(button.dataset.text);
      for (const other of bar.querySelectorAll("textarea")) other.hidden = true;
      let copied = false;
      try {
        await navigator.clipboard.writeText(area.value);
        copied = true;
      } catch {
        area.hidden = false;
        area.focus();
        area.select();
        try {
          copied = document.execCommand("copy");
        } catch {}
        if (copied) {
          area.hidden = true;
          button.focus();
        }
      }
      told.textContent = copied ? `${button.textContent} copied` : "selected: press Ctrl+C or \u2318C";
    });
  }
}
