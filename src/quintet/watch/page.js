"use strict";
(() => {
  const EVERY = 2000, RETRY = 5000, POINTS = 1000;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const bars = all(".bar"), runs = bars.map((bar) => bar.dataset.run);
  const connection = document.getElementById("connection");
  const waiting = new Map();
  let have = {}, lost = false, queue = Promise.resolve();

  // Parts of the report.

  const FIELDS = "input, details, button, summary, a[href], [tabindex]";
  const nameOf = (field, index) => field.value && field.name ? field.name + field.value : index;

  function replacePart(part, html) {
    const fields = new Map(all(FIELDS, part).map((field, index) => [nameOf(field, index), field]));
    const focus = [...fields].find(([, field]) => field === document.activeElement)?.[0];
    tell(part, "quintet:removed");
    part.innerHTML = html;
    tell(part, "quintet:replaced");
    all(FIELDS, part).forEach((field, index) => {
      const name = nameOf(field, index), old = fields.get(name);
      if (old?.localName !== field.localName) return;
      if (field.localName === "details") field.open = old.open;
      if (field.localName === "input" && (field.checked !== old.checked || field.value !== old.value)) {
        [field.checked, field.value] = [old.checked, old.value];
        tell(field, "input");
      }
      if (name === focus) field.focus({preventScroll: true});
    });
  }

  function tell(target, name) {
    target.dispatchEvent(new Event(name, {bubbles: true}));
  }

  const isPlaying = (part) => all("audio, video", part).some((medium) => !medium.paused);

  // Curves.

  function lengthen(part, points) {
    for (const box of all("[data-plot]", part)) {
      box.lines ??= JSON.parse(box.dataset.plot);
      let longer = false;
      for (const line of box.lines) {
        const [run, metric] = line.source, more = points[run]?.[metric];
        if (!more) continue;
        line.x.push(...more[0]);
        line.y.push(...more[1]);
        [line.x, line.y] = [thin(line.x), thin(line.y)];
        longer = true;
      }
      if (longer) tell(box, "quintet:longer");
    }
  }

  const thin = (values) => values.length <= POINTS ? values
    : values.filter((_, index) => index % 2 === 0 || index === values.length - 1);

  // The state of the runs.

  function showState(bar, state) {
    bar.className = `bar ${state.kind}`;
    const asked = state.asked.length ? `; asked to ${state.asked.join(", ")} at the next report` : "";
    setText(bar.querySelector(".state"), state.text + asked);
    for (const button of all("button", bar)) {
      button.disabled = false;
      button.toggleAttribute("data-pending", state.asked.includes(button.dataset.action));
    }
    const alarms = bar.querySelector(".alarms");
    alarms.hidden = !state.warnings;
    setText(alarms, state.warnings === 1 ? "1 warning" : `${state.warnings} warnings`);
  }

  function setText(element, words) {
    if (element.textContent !== words) element.textContent = words;
  }

  function complain(words) {
    connection.hidden = !words;
    setText(connection, words);
  }

  for (const bar of bars) {
    for (const button of all("button", bar)) {
      button.addEventListener("click", async () => {
        if (button.dataset.sure && !confirm(button.dataset.sure)) return;
        button.disabled = true;
        const {dataset: {action}} = button;
        const answer = await post("ask", {run: bar.dataset.run, action});
        complain(answer?.ok ? "" : await sentence(answer));
        await next();
      });
    }
  }

  async function sentence(answer) {
    if (!answer) return "quintet watch does not answer; the page tries again.";
    if (answer.status === 401) return "quintet watch has restarted: open the address that it printed.";
    return (await answer.json().catch(() => null))?.error?.message ?? `error ${answer.status}`;
  }

  // Asking for what is new.

  function post(path, value) {
    return fetch(path, {method: "POST", body: JSON.stringify(value)}).catch(() => null);
  }

  async function follow() {
    const answer = await post("news", {runs, ...have});
    if (!answer?.ok) {
      complain(await sentence(answer));
      lost = true;
      return RETRY;
    }
    const news = await answer.json();
    if (lost) complain("");
    lost = false;
    if (Object.keys(news.digests).some((id) => !document.getElementById(id))) {
      location.reload();  // the runs are of other recipes than before
      return RETRY;
    }
    for (const [id, html] of Object.entries(news.parts)) waiting.set(id, html);
    for (const [id, html] of waiting) {
      const part = document.getElementById(id);
      if (isPlaying(part)) continue;
      waiting.delete(id);
      replacePart(part, html);
    }
    for (const [id, points] of Object.entries(news.points)) lengthen(document.getElementById(id), points);
    for (const bar of bars) if (news.states[bar.dataset.run]) showState(bar, news.states[bar.dataset.run]);
    have = {digests: news.digests, at: news.at};
    return EVERY;
  }

  // One after another: points of two answers to the same question would be drawn twice.
  function next() {
    return queue = queue.then(follow).catch((error) => {
      console.error(error);
      return RETRY;
    });
  }

  async function repeat() {
    setTimeout(repeat, document.hidden ? EVERY : await next());
  }

  if (runs.length) repeat();
  else setTimeout(() => location.reload(), RETRY);
})();
