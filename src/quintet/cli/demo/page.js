"use strict";
// Reload while the demo runs, but not under a player; keep the scroll position and open details.
(() => {
  const EVERY = 4000, GONE = 10 * 60 * 1000;
  const live = Number(document.documentElement.dataset.live);
  const folds = [...document.querySelectorAll("details")];
  const store = {
    get: () => { try { return JSON.parse(sessionStorage.getItem("demo")); } catch { return null; } },
    set: (value) => { try { sessionStorage.setItem("demo", JSON.stringify(value)); } catch { } },
  };
  const kept = store.get();
  if (kept) {
    history.scrollRestoration = "manual";
    kept.open.forEach((index) => { if (folds[index]) folds[index].open = true; });
    scrollTo({top: kept.top, behavior: "instant"});
  }
  sessionStorage.removeItem("demo");
  if (!live) return;
  setInterval(() => {
    const plays = [...document.querySelectorAll("audio")].some((player) => !player.paused);
    if (plays || document.hidden || Date.now() - live > GONE) return;
    const open = folds.flatMap((fold, index) => fold.open ? [index] : []);
    store.set({top: scrollY, open});
    location.reload();
  }, EVERY);
})();
