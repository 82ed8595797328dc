// Keeps the board current: fetches it every two seconds while the page is visible, and replaces it when it has changed.
(function () {
  "use strict";
  const board = document.getElementById("board");
  const interval = 2000, patience = 15000;
  let shown = null, last = Date.now(), timer = null, running = false;

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

  // Shows the times and notes of what has not changed otherwise. Returns false where there are more or fewer of them.
  function renew(text) {
    const fresh = document.createElement("div");
    fresh.innerHTML = text;
    const from = fresh.querySelectorAll("p.source"), to = board.querySelectorAll("p.source");
    if (from.length !== to.length) { return false; }
    from.forEach((line, i) => { to[i].textContent = line.textContent; to[i].classList.remove("stale"); });
    return true;
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
      const answer = await fetch("/fragment" + location.search, { credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(patience) });
      const text = await answer.text();
      if (!answer.ok) { throw new Error(answer.status + " " + (answer.status === 401 ? text : answer.statusText)); }
      last = Date.now();
      if (busy()) { return; }
      if (shown === null || strip(text) !== strip(shown) || !renew(text)) { replace(text); }
      shown = text;
    } catch (error) {
      stale(error.message);
    }
  }

  async function loop() {
    if (running) { return; }
    running = true;
    await refresh();
    running = false;
    timer = setTimeout(loop, interval);
  }
  document.addEventListener("visibilitychange", function () {
    if (!document.hidden) { clearTimeout(timer); loop(); }
  });
  timer = setTimeout(loop, interval);
})();
