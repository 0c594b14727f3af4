"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
  const drawn = new Set();

  for (const button of all(".zoom")) {
    button.addEventListener("click", () => press(button, button.ariaPressed !== "true"));
  }

  function press(button, on) {
    button.setAttribute("aria-pressed", String(on));
  }

  // Curves.

  function smooth(values, weight) {
    let mean = 0, seen = 0;
    return values.map((value) => {
      mean = weight * mean + (1 - weight) * value;
      seen = weight * seen + (1 - weight);
      return mean / seen;
    });
  }

  function trace(line, weight) {
    const train = line.kind === "train", few = line.x.length < 60;
    const dash = line.aside ? "dash" : line.kind === "val_live" ? "dot" : "solid";
    return {
      x: line.x, y: train && weight ? smooth(line.y, weight) : line.y, name: line.name,
      type: "scatter", mode: !train && few ? "lines+markers" : "lines", marker: {size: 5},
      opacity: train ? 0.85 : 1,
      line: {color: colour(`c${line.colour % 8}`), width: line.aside ? 1.2 : 1.8, dash},
      hovertemplate: "%{y:.5g}",
    };
  }

  function curve(box) {
    const lines = JSON.parse(box.dataset.plot);
    const weight = Number(box.closest("section").querySelector(".smooth")?.value ?? 0) / 100;
    const axis = {
      gridcolor: colour("grid"), zerolinecolor: colour("grid"), automargin: true, exponentformat: "e",
    };
    // Names are shown as text: a tag in one of them would be read as one of plotly's own.
    const traces = lines.map((line) => trace({...line, name: plain(line.name)}, weight));
    if (!drawn.has(box)) box.replaceChildren();
    Plotly.react(box, traces, {
      margin: {l: 8, r: 8, t: 8, b: 8}, showlegend: lines.length > 1 && !box.dataset.several,
      legend: {orientation: "h", y: -0.12, yanchor: "top", font: {size: 11}},
      paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      font: {color: colour("ink"), size: 12}, hovermode: "x unified",
      hoverlabel: {bgcolor: colour("card"), bordercolor: colour("edge"), font: {color: colour("ink")}},
      xaxis: {...axis}, yaxis: {...axis, type: box.dataset.log ? "log" : "linear"},
    }, {displayModeBar: false, responsive: true});
  }

  function plain(words) {
    return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  }

  function setLog(box, on) {
    box.dataset.log = on ? "yes" : "";
    press(box.closest("figure").querySelector(".log"), on);
    if (drawn.has(box)) curve(box);
  }

  function curveTools() {
    for (const button of all(".log")) {
      const box = button.closest("figure").querySelector(".plot");
      button.hidden = false;
      button.addEventListener("click", () => setLog(box, !box.dataset.log));
    }
    for (const input of all(".all-log")) {
      input.addEventListener("input", () => {
        for (const box of all(".plot", input.closest("section"))) setLog(box, input.checked);
      });
    }
    for (const input of all(".smooth")) {
      input.addEventListener("input", () => {
        for (const box of all(".plot", input.closest("section"))) if (drawn.has(box)) curve(box);
      });
    }
  }

  // Meshes.

  function bytes(packed) {
    return Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  }

  function edges(places, faces) {
    const seen = new Set(), line = [[], [], []];
    for (let face = 0; face < faces.length; face += 3) {
      for (let side = 0; side < 3; side++) {
        const a = faces[face + side], b = faces[face + (side + 1) % 3];
        const key = a < b ? `${a} ${b}` : `${b} ${a}`;
        if (seen.has(key)) continue;
        seen.add(key);
        for (let axis = 0; axis < 3; axis++) {
          line[axis].push(places[3 * a + axis], places[3 * b + axis], null);
        }
      }
    }
    return line;
  }

  function every(values, first) {
    return Array.from({length: values.length / 3}, (_, index) => values[3 * index + first]);
  }

  const START = {azimuth: -0.9, elevation: 0.42};

  function eye({azimuth, elevation}) {
    const far = 2.1, flat = far * Math.cos(elevation);
    return {x: flat * Math.cos(azimuth), y: flat * Math.sin(azimuth), z: far * Math.sin(elevation)};
  }

  function mesh(box) {
    const data = JSON.parse(box.dataset.mesh);
    const places = new Float32Array(bytes(data.vertices).buffer);
    const faces = new Uint32Array(bytes(data.faces).buffer);
    const [x, y, z] = [0, 1, 2].map((axis) => every(places, axis));
    const [i, j, k] = [0, 1, 2].map((corner) => every(faces, corner));
    const traces = [{
      type: "mesh3d", x, y, z, i, j, k, color: colour("mesh"), flatshading: true, hoverinfo: "skip",
      lighting: {ambient: 0.55, diffuse: 0.75, specular: 0.12, roughness: 0.8, fresnel: 0.1},
      lightposition: {x: 2000, y: -3000, z: 6000},
    }];
    if (data.count <= 2000) {
      const [ex, ey, ez] = edges(places, faces);
      traces.push({
        type: "scatter3d", mode: "lines", x: ex, y: ey, z: ez, hoverinfo: "skip",
        line: {color: colour("wire"), width: 2.5},
      });
    }
    const axis = {visible: false, showspikes: false};
    box.view ??= {...START};
    if (!drawn.has(box)) box.replaceChildren();
    Plotly.react(box, traces, {
      margin: {l: 0, r: 0, t: 0, b: 0}, showlegend: false, paper_bgcolor: "transparent",
      scene: {
        xaxis: axis, yaxis: axis, zaxis: axis, aspectmode: "data", dragmode: "turntable",
        bgcolor: "rgba(0,0,0,0)", camera: {eye: eye(box.view), up: {x: 0, y: 0, z: 1}},
      },
    }, {displayModeBar: false, responsive: true, scrollZoom: false});
  }

  function follow(card, box) {
    box.on("plotly_relayout", (change) => {
      if (!change["scene.camera"]) return;
      for (const other of all(".mesh", card)) if (other !== box) look(other, seen(box));
    });
  }

  function look(box, view) {
    box.view = view;
    if (drawn.has(box)) Plotly.relayout(box, {"scene.camera.eye": eye(view)});
  }

  const WAYS = {left: [-0.26, 0], right: [0.26, 0], up: [0, 0.2], down: [0, -0.2]};

  function turn(card, way, share = 1) {
    const [round, over] = WAYS[way];
    for (const box of all(".mesh", card)) {
      const {azimuth, elevation} = seen(box);
      const high = Math.max(-1.45, Math.min(1.45, elevation + over * share));
      look(box, {azimuth: azimuth + round * share, elevation: high});
    }
  }

  function seen(box) {
    const at = box.layout?.scene?.camera?.eye;
    if (!at) return box.view ?? {...START};
    return {azimuth: Math.atan2(at.y, at.x), elevation: Math.atan2(at.z, Math.hypot(at.x, at.y))};
  }

  function keepTurning(button, card) {
    const on = button.ariaPressed !== "true";
    press(button, on);
    const next = () => {
      if (button.ariaPressed !== "true") return;
      if (all(".mesh", card).some((box) => drawn.has(box))) turn(card, "right", 0.08);
      requestAnimationFrame(next);
    };
    if (on) next();
  }

  const KEYS = {ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down"};

  function meshTools() {
    for (const card of all(".turns")) {
      for (const button of all("[data-turn]", card)) {
        const way = button.dataset.turn;
        button.addEventListener("click", () => {
          way === "round" ? keepTurning(button, card) : turn(card, way);
        });
      }
      for (const box of all(".mesh", card)) {
        box.addEventListener("keydown", (event) => {
          if (!KEYS[event.key]) return;
          event.preventDefault();
          turn(card, KEYS[event.key]);
        });
      }
    }
  }

  // Drawing what is near the window; views in 3-D are few, so those far away are given back.

  function draw(box) {
    const again = drawn.has(box);
    box.dataset.mesh ? mesh(box) : curve(box);
    drawn.add(box);
    if (box.dataset.mesh && !again) follow(box.closest(".turns"), box);
  }

  function forget(box) {
    box.view = seen(box);
    Plotly.purge(box);
    drawn.delete(box);
  }

  function watch() {
    const near = new IntersectionObserver((changes) => {
      for (const {target, isIntersecting} of changes) {
        if (isIntersecting && !drawn.has(target)) draw(target);
        else if (!isIntersecting && target.dataset.mesh && drawn.has(target)) forget(target);
      }
    }, {rootMargin: "300px"});
    for (const box of all("[data-plot], [data-mesh]")) near.observe(box);
    dark.addEventListener("change", () => drawn.forEach(draw));
  }

  async function unpack(packed) {
    const stream = new Blob([bytes(packed.textContent)]).stream();
    const script = document.createElement("script");
    script.textContent = await new Response(
      stream.pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    packed.remove();
  }

  async function start() {
    const packed = document.getElementById("plotly");
    if (!packed || !window.DecompressionStream) return;
    await unpack(packed);
    curveTools();
    meshTools();
    for (const tools of all(".tools")) tools.hidden = false;
    watch();
    document.documentElement.dataset.ready = "yes";
  }

  start();
})();
