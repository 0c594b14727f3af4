"use strict";
// A form for each model, made of the schemas of its flags. A family may add viewers of its own files:
// quintet.viewers.push((file, bytes) => element or null).
const quintet = {viewers: []};

(() => {
  const by = (id) => document.getElementById(id);
  const FIRST = ["text", "faces", "count", "seed", "voice", "like", "clip"];
  let models = [], model = null, asking = null;

  function make(tag, attributes = {}, ...inside) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in element && typeof value !== "string") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...inside);
    return element;
  }

  // -- the form ---------------------------------------------------------------------------------

  function choose(chosen) {
    model = chosen;
    location.hash = model.id;
    by("models").replaceChildren(...models.map((each) => {
      const pressed = String(each === model);
      const button = make("button", {type: "button", "aria-pressed": pressed}, each.id);
      button.addEventListener("click", () => { choose(each); by("models").querySelector("[aria-pressed=true]").focus(); });
      return button;
    }));
    by("about").textContent = `${model.family}. ${model.about.replaceAll("--", "")}`;
    const main = by("main-fields"), more = by("more-fields");
    main.replaceChildren();
    more.replaceChildren();
    const input = field("input", {type: "array", items: {format: "binary"}, description: "Files to work on; drop them here."});
    (model.takes_files ? main : more).append(input);
    for (const [name, schema] of Object.entries(model.flags)) {
      (FIRST.includes(name) ? main : more).append(field(name, schema));
    }
    main.className = "grid";
    if (by("f-text")) by("f-text").value = model.example;
    by("dice").hidden = !("seed" in model.flags);
    by("form").hidden = by("call").hidden = false;
    describe();
  }

  function field(name, schema) {
    const id = `f-${name}`, hint = `h-${name}`;
    const common = {id, name, "aria-describedby": hint};
    const isFile = schema.format === "binary" || schema.items?.format === "binary";
    let control;
    if (isFile) {
      control = make("input", {...common, type: "file", multiple: schema.type === "array"});
    } else if (schema.enum) {
      const none = schema.default === null ? [make("option", {value: ""}, "default")] : [];
      control = make("select", common, ...none, ...schema.enum.map((word) => make("option", {}, word)));
      control.value = schema.default ?? "";
    } else if (schema.type === "boolean") {
      control = make("input", {...common, type: "checkbox", checked: schema.default});
    } else if (name === "text") {
      control = make("textarea", {...common, rows: "2"});
    } else {
      control = make("input", {...common, type: "text", autocomplete: "off", value: show(schema.default)});
      if (schema.type === "integer") control.inputMode = "numeric";
    }
    const box = make("div", {class: "field"}, make("label", {for: id}, name.replaceAll("_", " ")),
      make("p", {class: "hint", id: hint}, schema.description ?? ""), control);
    if (isFile) dropped(box, control, name);
    return box;
  }

  const show = (value) => value === null || value === undefined ? "" : Array.isArray(value) ? value.join(" ") : String(value);

  function dropped(box, control, name) {
    const zone = make("div", {class: "drop"});
    control.replaceWith(zone);
    zone.append(control);
    if (name !== "input" && model.files.length) {
      const named = make("select", {id: `n-${name}`, "aria-label": `${name} by name`},
        make("option", {value: ""}, "or one of the server"), ...model.files.map((each) => make("option", {}, each)));
      zone.append(named);
    }
    for (const kind of ["dragover", "dragleave", "drop"]) {
      zone.addEventListener(kind, (event) => {
        event.preventDefault();
        zone.classList.toggle("over", kind === "dragover");
        if (kind === "drop") { control.files = event.dataTransfer.files; describe(); }
      });
    }
  }

  // Values as JSON, without those left at their defaults; and files as [field, file].
  function gathered() {
    const values = {}, files = [];
    for (const [name, schema] of Object.entries({input: {format: "binary"}, ...model.flags})) {
      const control = by(`f-${name}`);
      if (control.type === "file") {
        for (const file of control.files) files.push([name, file]);
        if (by(`n-${name}`)?.value) values[name] = by(`n-${name}`).value;
      } else if (schema.type === "boolean") {
        if (control.checked !== schema.default) values[name] = control.checked;
      } else if (control.value !== "" && (name === "seed" || control.value !== show(schema.default))) {
        values[name] = typed(schema, control.value, name);
      }
    }
    return {values, files};
  }

  function typed(schema, value, name) {
    if (name === "text") return value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (schema.type === "array") return value.trim().split(/[x, ]+/).map(Number);
    if (schema.type === "integer" || schema.type === "number") {
      const number = Number(value);
      if (Number.isNaN(number)) throw new Error(`${name} must be a number`);
      return number;
    }
    return value;
  }

  // -- the call ---------------------------------------------------------------------------------

  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

  function describe() {
    let call;
    try { call = gathered(); } catch { return; }
    const {values, files} = call, url = `${location.origin}/v1/models/${model.id}/sample`;
    const pairs = Object.entries(values).flatMap(([name, value]) =>
      (name === "text" ? value : [Array.isArray(value) ? value.join("x") : value]).map((each) => [name, String(each)]));
    const curl = files.length
      ? [...pairs.map(([n, v]) => `--form-string ${quoted(`${n}=${v}`)}`), ...files.map(([n, f]) => `-F ${quoted(`${n}=@${f.name}`)}`)]
      : [`-H 'Content-Type: application/json'`, `-d ${quoted(JSON.stringify(values))}`];
    by("curl").textContent = [`curl ${url}`, ...curl, "-H 'Accept: application/zip' -o answer.zip"].join(" \\\n  ");
    const body = files.length
      ? `    data=${python(pairs)},\n    files=[${files.map(([n, f]) => `(${python(n)}, open(${python(f.name)}, "rb"))`).join(", ")}],\n`
      : `    json=${python(values)},\n`;
    by("python").textContent = `import base64\nfrom pathlib import Path\n\nimport requests\n\nanswer = requests.post(\n    ${python(url)},\n${body})\n`
      + "answer.raise_for_status()\nfor file in answer.json()[\"files\"]:\n    Path(file[\"name\"]).write_bytes(base64.b64decode(file[\"b64\"]))\n";
  }

  function python(value) {
    if (value === true || value === false) return value ? "True" : "False";
    if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
    if (value && typeof value === "object") return `{${Object.entries(value).map(([n, v]) => `${python(n)}: ${python(v)}`).join(", ")}}`;
    return JSON.stringify(value);
  }

  async function ask(event) {
    event.preventDefault();
    const status = by("status"), began = performance.now();
    status.className = "";
    by("go").disabled = true;
    by("stop").hidden = false;
    asking = new AbortController();
    const clock = setInterval(() => { status.textContent = `${((performance.now() - began) / 1000).toFixed(0)} s …`; }, 500);
    try {
      const {values, files} = gathered();
      const path = `/v1/models/${model.id}/sample`;
      const answer = await fetch(path, {method: "POST", signal: asking.signal, ...bodyOf(values, files)});
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error?.message ?? answer.statusText);
      result(found, values, (performance.now() - began) / 1000);
      status.textContent = "";
    } catch (error) {
      status.textContent = error.name === "AbortError" ? "stopped" : error.message;
      status.className = error.name === "AbortError" ? "" : "error";
    } finally {
      clearInterval(clock);
      by("go").disabled = false;
      by("stop").hidden = true;
    }
  }

  function bodyOf(values, files) {
    if (!files.length) return {body: JSON.stringify(values), headers: {"Content-Type": "application/json"}};
    const form = new FormData();
    for (const [name, value] of Object.entries(values)) {
      for (const each of name === "text" ? value : [Array.isArray(value) ? value.join("x") : value]) form.append(name, each);
    }
    for (const [name, file] of files) form.append(name, file, file.name);
    return {body: form};
  }

  // -- results ----------------------------------------------------------------------------------

  function result(found, values, seconds) {
    const texts = (values.text ?? []).join(" · "), seed = found.seed ?? null;
    const title = `${found.model}${texts ? `: ${texts}` : ""}`;
    const about = `${seed === null ? "" : `seed ${seed}, `}${seconds.toFixed(1)} s`;
    const lines = [...found.lines, ...found.notes];
    const box = make("div", {class: "result"}, make("h3", {}, title), make("p", {class: "soft"}, about),
      make("div", {class: "files"}, ...found.files.filter((file) => !isSheet(file)).map((file) => figure(file, seed))),
      ...found.files.filter(isSheet).map((file) => make("details", {}, make("summary", {}, file.name), figure(file, seed))),
      ...(lines.length ? [make("pre", {tabindex: "0"}, lines.join("\n"))] : []));
    by("results").prepend(box);
    by("results-box").hidden = false;
    for (const old of [...by("results").children].slice(12)) {
      for (const link of old.querySelectorAll("a[download]")) URL.revokeObjectURL(link.href);
      old.remove();
    }
  }

  const isSheet = (file) => file.name.startsWith("sheet.");

  function figure(file, seed) {
    const bytes = Uint8Array.from(atob(file.b64), (letter) => letter.charCodeAt(0));
    const url = URL.createObjectURL(new Blob([bytes], {type: file.type}));
    const number = /-(\d+)\.\w+$/.exec(file.name), label = seed === null ? file.name : `${file.name}, seed ${seed}`;
    const shown = viewer(file, bytes, url, label);
    const caption = number && seed !== null ? `seed ${seed} · ${Number(number[1])}` : file.name;
    return make("figure", {class: isSheet(file) || file.type === "application/json" ? "whole" : ""}, ...(shown ? [shown] : []),
      make("figcaption", {}, make("span", {}, caption),
        make("a", {class: "button", href: url, download: file.name, "aria-label": `download ${file.name}`}, "Download")));
  }

  function viewer(file, bytes, url, label) {
    for (const view of quintet.viewers) {
      const shown = view(file, bytes);
      if (shown) return shown;
    }
    if (file.type.startsWith("image/")) {
      const image = make("img", {src: url, alt: label});
      image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= 256));
      return image;
    }
    if (file.type.startsWith("audio/")) return make("audio", {src: url, controls: true, "aria-label": label});
    if (file.type.startsWith("video/")) return make("video", {src: url, controls: true, loop: true, muted: true, autoplay: true, playsInline: true, "aria-label": label});
    if (file.type === "application/json") return make("pre", {tabindex: "0"}, new TextDecoder().decode(bytes).slice(0, 5000));
    const mesh = /\.glb$/.test(file.name) ? readGlb(bytes) : /\.obj$/.test(file.name) ? readObj(bytes) : null;
    return mesh ? turning(mesh, label) : null;
  }

  function readObj(bytes) {
    const points = [], faces = [];
    for (const line of new TextDecoder().decode(bytes).split("\n")) {
      const [kind, ...rest] = line.trim().split(/\s+/);
      if (kind === "v") points.push(rest.slice(0, 3).map(Number));
      if (kind === "f") {
        const corners = rest.map((word) => parseInt(word, 10) - 1);
        for (let i = 2; i < corners.length; i++) faces.push([corners[0], corners[i - 1], corners[i]]);
      }
    }
    return {points, faces};
  }

  // Meshes as this server writes them: triangles of float positions with indices, in one buffer.
  function readGlb(bytes) {
    const view = new DataView(bytes.buffer), length = view.getUint32(12, true);
    const about = JSON.parse(new TextDecoder().decode(bytes.subarray(20, 20 + length)));
    const numbers = (index) => {
      const accessor = about.accessors[index], part = about.bufferViews[accessor.bufferView];
      const at = 28 + length + (part.byteOffset ?? 0) + (accessor.byteOffset ?? 0);
      const [Kind, size] = {5121: [Uint8Array, 1], 5123: [Uint16Array, 2], 5125: [Uint32Array, 4], 5126: [Float32Array, 4]}[accessor.componentType];
      const count = accessor.count * (accessor.type === "VEC3" ? 3 : 1);
      return [...new Kind(bytes.slice(at, at + count * size).buffer)];
    };
    const threes = (values) => Array.from({length: values.length / 3}, (_, i) => values.slice(3 * i, 3 * i + 3));
    const {attributes, indices} = about.meshes[0].primitives[0];
    return {points: threes(numbers(attributes.POSITION)), faces: threes(numbers(indices))};
  }

  // -- meshes that turn: the faces from far to near, with y upwards -----------------------------

  function turning({points, faces}, label) {
    const canvas = make("canvas", {tabindex: "0", role: "img", "aria-label": `${label}; turn it with the arrow keys`});
    const axes = [0, 1, 2].map((axis) => points.map((point) => point[axis]));
    const low = axes.map((values) => Math.min(...values)), high = axes.map((values) => Math.max(...values));
    const middle = low.map((value, axis) => (value + high[axis]) / 2);
    const radius = Math.max(1e-6, Math.hypot(...low.map((value, axis) => high[axis] - value)) / 2);
    let turn = 0.6, tilt = 0.35, held = null;
    const draw = () => {
      const {clientWidth: width, clientHeight: height} = canvas, ratio = devicePixelRatio || 1;
      if (!width) return;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      const paint = canvas.getContext("2d"), scale = Math.min(width, height) / 2.2 / radius;
      paint.scale(ratio, ratio);
      const [c, s, d, e] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
      const seen = points.map((point) => {
        const [x, y, z] = point.map((value, axis) => value - middle[axis]);
        const depth = c * z - s * x;
        return [width / 2 + scale * (c * x + s * z), height / 2 - scale * (d * y - e * depth), d * depth + e * y];
      });
      const order = faces.map((face) => [face.reduce((sum, i) => sum + seen[i][2], 0), face]).sort((a, b) => a[0] - b[0]);
      const style = getComputedStyle(canvas), [red, green, blue] = rgb(style.getPropertyValue("--mesh"));
      paint.strokeStyle = style.getPropertyValue("--wire");
      paint.lineWidth = 0.8;
      paint.lineJoin = "round";
      for (const [, [i, j, k]] of order) {
        const [p, q, r] = [seen[i], seen[j], seen[k]];
        const u = q.map((value, axis) => value - p[axis]), v = r.map((value, axis) => value - p[axis]);
        const normal = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
        const light = 0.55 + 0.45 * Math.abs(normal[2]) / (Math.hypot(...normal) || 1);
        paint.fillStyle = `rgb(${red * light},${green * light},${blue * light})`;
        paint.beginPath();
        paint.moveTo(p[0], p[1]);
        paint.lineTo(q[0], q[1]);
        paint.lineTo(r[0], r[1]);
        paint.closePath();
        paint.fill();
        if (faces.length <= 3000) paint.stroke();
      }
    };
    const rotate = (sideways, upwards) => {
      turn += sideways;
      tilt = Math.max(-1.5, Math.min(1.5, tilt + upwards));
      draw();
    };
    canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      rotate((event.clientX - held[0]) / 120, (event.clientY - held[1]) / 120);
      held = [event.clientX, event.clientY];
    });
    canvas.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, -0.2], ArrowDown: [0, 0.2]}[event.key];
      if (!step) return;
      event.preventDefault();
      rotate(...step);
    });
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    return canvas;
  }

  function rgb(colour) {
    const value = parseInt(colour.trim().slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }

  // -- start ------------------------------------------------------------------------------------

  async function start() {
    const answer = await fetch("/v1/models");
    models = (await answer.json()).data;
    choose(models.find((each) => `#${each.id}` === location.hash) ?? models[0]);
    by("form").addEventListener("submit", ask);
    by("form").addEventListener("input", describe);
    by("stop").addEventListener("click", () => asking?.abort());
    by("dice").addEventListener("click", () => { by("f-seed").value = String(Math.floor(Math.random() * 2 ** 31)); describe(); });
    for (const button of document.querySelectorAll(".copy")) {
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(by(button.dataset.of).textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
    document.documentElement.dataset.ready = "yes";
  }

  start();
})();
