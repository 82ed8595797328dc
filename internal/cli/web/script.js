// Keeps the board current: fetches it every two seconds while the page is visible, and replaces it when it has changed.
(function () {
  "use strict";
  const board = document.getElementById("board");
  const interval = 2000;
  let shown = null, last = Date.now(), timer = null;

  // The times of the reads differ each time: they do not count as a change, but are shown.
  function strip(text) { return text.replace(/<p class="source"[^]*?<\/p>/g, ""); }

  function busy() {
    const active = document.activeElement;
    return active && board.contains(active) && active.tagName === "INPUT";
  }

  function stale(error) {
    const source = document.getElementById("source");
    if (!source) { return; }
    source.classList.add("stale");
    source.textContent = "not read since " + new Date(last).toLocaleTimeString() + ": " + error;
  }

  function replace(text) {
    const active = document.activeElement, href = active && active.getAttribute && active.getAttribute("href");
    board.innerHTML = text;
    if (href) {
      const again = Array.from(board.querySelectorAll("a")).find((a) => a.getAttribute("href") === href);
      if (again) { again.focus({ preventScroll: true }); }
    }
  }

  async function refresh() {
    if (document.hidden || busy()) { return; }
    try {
      const answer = await fetch("/fragment" + location.search, { credentials: "same-origin", cache: "no-store" });
      const text = await answer.text();
      if (!answer.ok) { throw new Error(answer.status + " " + (answer.status === 401 ? text : answer.statusText)); }
      last = Date.now();
      if (shown === null || strip(text) !== strip(shown)) {
        replace(text);
      } else {
        const fresh = document.createElement("div");
        fresh.innerHTML = text;
        const from = fresh.querySelector("#source"), to = document.getElementById("source");
        if (from && to) { to.textContent = from.textContent; to.classList.remove("stale"); }
      }
      shown = text;
    } catch (error) {
      stale(error.message);
    }
  }

  async function loop() {
    await refresh();
    timer = setTimeout(loop, interval);
  }
  document.addEventListener("visibilitychange", function () {
    if (!document.hidden) { clearTimeout(timer); loop(); }
  });
  timer = setTimeout(loop, interval);
})();
