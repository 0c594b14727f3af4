"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
  const drawn = new Set();

  function bindZoom(inside) {
    for (const button of all(".zoom", inside)) {
      button.addEventListener("click", () => setPressed(button, button.ariaPressed !== "true"));
    }
  }

  function setPressed(button, on) {
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
    const dash = line.baseline ? "dash" : line.kind === "val_live" ? "dot" : "solid";
    return {
      x: line.x, y: train && weight ? smooth(line.y, weight) : line.y, name: line.name,
      type: "scatter", mode: !train && few ? "lines+markers" : "lines", marker: {size: 5},
      opacity: train ? 0.85 : 1,
      line: {color: colour(`c${line.colour % 8}`), width: line.baseline ? 1.2 : 1.8, dash},
      hovertemplate: "%{y:.5g}",
    };
  }

  function curve(box) {
    const lines = box.lines ??= JSON.parse(box.dataset.plot);
    const weight = Number(box.closest("section").querySelector(".smooth")?.value ?? 0) / 100;
    const axis = {
      gridcolor: colour("grid"), zerolinecolor: colour("grid"), automargin: true, exponentformat: "e",
    };
    // Escaped: plotly would interpret a tag in a name.
    const traces = lines.map((line) => trace({...line, name: escapeHtml(line.name)}, weight));
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

  function escapeHtml(name) {
    return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  }

  function setLog(box, on) {
    box.dataset.log = on ? "yes" : "";
    setPressed(box.closest("figure").querySelector(".log"), on);
    if (drawn.has(box)) curve(box);
  }

  function bindCurveControls(inside) {
    for (const button of all(".log", inside)) {
      const box = button.closest("figure").querySelector(".plot");
      button.hidden = false;
      button.addEventListener("click", () => setLog(box, !box.dataset.log));
    }
    for (const input of all(".all-log", inside)) {
      input.addEventListener("input", () => {
        for (const box of all(".plot", input.closest("section"))) setLog(box, input.checked);
      });
    }
    for (const input of all(".smooth", inside)) {
      input.addEventListener("input", () => {
        for (const box of all(".plot", input.closest("section"))) if (drawn.has(box)) curve(box);
      });
    }
  }

  // Meshes.

  function bytes(packed) {
    return Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  }

  function edges(vertices, faces) {
    const seen = new Set(), line = [[], [], []];
    for (let face = 0; face < faces.length; face += 3) {
      for (let side = 0; side < 3; side++) {
        const a = faces[face + side], b = faces[face + (side + 1) % 3];
        const key = a < b ? `${a} ${b}` : `${b} ${a}`;
        if (seen.has(key)) continue;
        seen.add(key);
        for (let axis = 0; axis < 3; axis++) {
          line[axis].push(vertices[3 * a + axis], vertices[3 * b + axis], null);
        }
      }
    }
    return line;
  }

  function column(values, first) {
    return Array.from({length: values.length / 3}, (_, index) => values[3 * index + first]);
  }

  const START = {azimuth: -0.9, elevation: 0.42};

  function eyePosition({azimuth, elevation}) {
    const distance = 2.1, horizontal = distance * Math.cos(elevation);
    const [x, y] = [horizontal * Math.cos(azimuth), horizontal * Math.sin(azimuth)];
    return {x, y, z: distance * Math.sin(elevation)};
  }

  function mesh(box) {
    const data = JSON.parse(box.dataset.mesh);
    const vertices = new Float32Array(bytes(data.vertices).buffer);
    const faces = new Uint32Array(bytes(data.faces).buffer);
    const [x, y, z] = [0, 1, 2].map((axis) => column(vertices, axis));
    const [i, j, k] = [0, 1, 2].map((corner) => column(faces, corner));
    const traces = [{
      type: "mesh3d", x, y, z, i, j, k, color: colour("mesh"), flatshading: true, hoverinfo: "skip",
      lighting: {ambient: 0.55, diffuse: 0.75, specular: 0.12, roughness: 0.8, fresnel: 0.1},
      lightposition: {x: 2000, y: -3000, z: 6000},
    }];
    if (data.count <= 2000) {
      const [ex, ey, ez] = edges(vertices, faces);
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
        bgcolor: "rgba(0,0,0,0)", camera: {eye: eyePosition(box.view), up: {x: 0, y: 0, z: 1}},
      },
    }, {displayModeBar: false, responsive: true, scrollZoom: false});
  }

  function syncViews(card, box) {
    box.on("plotly_relayout", (change) => {
      if (!change["scene.camera"]) return;
      for (const other of all(".mesh", card)) if (other !== box) setView(other, currentView(box));
    });
  }

  function setView(box, view) {
    box.view = view;
    if (drawn.has(box)) Plotly.relayout(box, {"scene.camera.eye": eyePosition(view)});
  }

  const DIRECTIONS = {left: [-0.26, 0], right: [0.26, 0], up: [0, 0.2], down: [0, -0.2]};

  function rotate(card, direction, fraction = 1) {
    const [deltaAzimuth, deltaElevation] = DIRECTIONS[direction];
    for (const box of all(".mesh", card)) {
      const {azimuth, elevation} = currentView(box);
      const clamped = Math.max(-1.45, Math.min(1.45, elevation + deltaElevation * fraction));
      setView(box, {azimuth: azimuth + deltaAzimuth * fraction, elevation: clamped});
    }
  }

  function currentView(box) {
    const position = box.layout?.scene?.camera?.eye;
    if (!position) return box.view ?? {...START};
    const {x, y, z} = position;
    return {azimuth: Math.atan2(y, x), elevation: Math.atan2(z, Math.hypot(x, y))};
  }

  function toggleSpin(button, card) {
    const on = button.ariaPressed !== "true";
    setPressed(button, on);
    const next = () => {
      if (button.ariaPressed !== "true") return;
      if (all(".mesh", card).some((box) => drawn.has(box))) rotate(card, "right", 0.08);
      requestAnimationFrame(next);
    };
    if (on) next();
  }

  const KEY_DIRECTIONS = {ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down"};

  function bindMeshControls(inside) {
    for (const card of all(".meshes", inside)) {
      for (const button of all("[data-rotate]", card)) {
        const direction = button.dataset.rotate;
        button.addEventListener("click", () => {
          direction === "spin" ? toggleSpin(button, card) : rotate(card, direction);
        });
      }
      for (const box of all(".mesh", card)) {
        box.addEventListener("keydown", (event) => {
          if (!KEY_DIRECTIONS[event.key]) return;
          event.preventDefault();
          rotate(card, KEY_DIRECTIONS[event.key]);
        });
      }
    }
  }

  // Lazy drawing near the viewport. Browsers limit WebGL contexts, so distant meshes are released.

  function draw(box) {
    const isRedraw = drawn.has(box);
    box.dataset.mesh ? mesh(box) : curve(box);
    drawn.add(box);
    if (box.dataset.mesh && !isRedraw) syncViews(box.closest(".meshes"), box);
  }

  function release(box) {
    box.view = currentView(box);
    Plotly.purge(box);
    drawn.delete(box);
  }

  const observer = new IntersectionObserver((changes) => {
    for (const {target, isIntersecting} of changes) {
      if (isIntersecting && !drawn.has(target)) draw(target);
      else if (!isIntersecting && target.dataset.mesh && drawn.has(target)) release(target);
    }
  }, {rootMargin: "300px"});

  function bindPlots(inside) {
    bindCurveControls(inside);
    bindMeshControls(inside);
    for (const tools of all(".tools", inside)) tools.hidden = false;
    for (const box of all("[data-plot], [data-mesh]", inside)) observer.observe(box);
  }

  // The script of a live page replaces parts of it, and lengthens the lines of curves.

  function followLivePage() {
    document.addEventListener("quintet:removed", ({target}) => {
      for (const box of all("[data-plot], [data-mesh]", target)) {
        observer.unobserve(box);
        if (drawn.has(box)) release(box);
      }
    });
    document.addEventListener("quintet:replaced", ({target}) => {
      bindZoom(target);
      bindPlots(target);
    });
    document.addEventListener("quintet:longer", ({target}) => {
      if (drawn.has(target)) curve(target);
    });
  }

  async function loadPlotly(packed) {
    const stream = new Blob([bytes(packed.textContent)]).stream();
    const script = document.createElement("script");
    script.textContent = await new Response(
      stream.pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    packed.remove();
  }

  async function start() {
    const packed = document.getElementById("plotly");
    if (!packed) return;
    if (!window.DecompressionStream) {
      for (const box of all(".mesh")) box.textContent = "The 3-D view needs a newer browser.";
      return;
    }
    await loadPlotly(packed);
    bindPlots(document);
    dark.addEventListener("change", () => drawn.forEach(draw));
    followLivePage();
    document.documentElement.dataset.ready = "yes";
  }

  bindZoom(document);
  start();
})();
