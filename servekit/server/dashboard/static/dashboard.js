// Asks for new samples once a second and draws what there is. Nothing comes from elsewhere.
"use strict";

const KEEP = 600, EVERY_MS = 1000, STATES = 4;
const COLOURS = ["#eceff3", "#3465c9", "#63b983", "#cf3f43", "#93cfa9"];
const NAMES = ["empty", "prompt", "answer", "preempted", "answer"];
const samples = [];
let last = 0, busy = false;

const base = {
  font: { family: "system-ui, sans-serif", size: 12, color: "#1d2430" },
  margin: { l: 52, r: 12, t: 8, b: 34 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
  hovermode: "x", showlegend: true, bargap: 0.05,
  legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
};
const axis = { gridcolor: "#e8ecf1", zerolinecolor: "#cfd6df", automargin: true };
const options = { responsive: true, displayModeBar: false };

function draw(id, data, layout) {
  const whole = { ...base, ...layout };
  whole.xaxis = { ...axis, ...(layout.xaxis || {}) };
  whole.yaxis = { ...axis, rangemode: "tozero", ...(layout.yaxis || {}) };
  Plotly.react(id, data, whole, options);
}

const element = id => document.getElementById(id);
const column = key => samples.map(sample => sample[key]);
const times = () => samples.map(sample => new Date(sample.at * 1000));
const thousands = key => samples.map(sample =>
  sample[key] === null || sample[key] === undefined ? null : sample[key] / 1000);

function rounded(value) {
  if (value === null || value === undefined) return "–";
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

function percentile(values, share) {
  if (!values.length) return null;
  const ordered = [...values].sort((a, b) => a - b);
  return ordered[Math.min(ordered.length - 1, Math.floor(share / 100 * ordered.length))];
}

function line(name, y, color, more = {}) {
  return { type: "scatter", mode: "lines", name, x: times(), y,
    line: { width: 1.5, color, shape: "hv" }, ...more };
}

function area(name, y, color) {
  return line(name, y, color, { stackgroup: "one", line: { width: 0.5, color }, fillcolor: color });
}

function seats(total) {
  const highest = Math.max(1, ...samples.map(sample => sample.seats.length));
  const height = Math.min(64, Math.max(highest, Math.min(total, 16)));
  const shades = [], texts = [];
  for (let seat = 0; seat < height; seat++) {
    let before = 0, other = false;
    const shade = [], text = [];
    for (const sample of samples) {
      const cell = sample.seats[seat] || 0, request = Math.floor(cell / STATES);
      if (cell && request !== before) { before = request; other = !other; }
      const state = cell % STATES;
      shade.push(state === 2 && !other ? 4 : state);
      text.push(cell ? `request ${request}, ${NAMES[state]}` : "empty");
    }
    shades.push(shade);
    texts.push(text);
  }
  const scale = COLOURS.flatMap((color, place) =>
    [[place / COLOURS.length, color], [(place + 1) / COLOURS.length, color]]);
  const key = [1, 2, 3, 0].map(state => ({ type: "scatter", mode: "markers", x: [null], y: [null],
    name: NAMES[state], marker: { color: COLOURS[state], size: 11, symbol: "square" } }));
  draw("seats", [{ type: "heatmap", x: times(), y: shades.map((_, seat) => seat + 1), z: shades,
    text: texts, hovertemplate: "seat %{y}, %{text}<extra></extra>", showscale: false,
    colorscale: scale, zmin: -0.5, zmax: COLOURS.length - 0.5, ygap: 1 }, ...key],
    { hovermode: "closest", xaxis: { type: "date", showgrid: false },
      yaxis: { title: { text: "seat" }, showgrid: false, zeroline: false, dtick: height > 20 ? 8 : 4,
        tick0: 0, range: [0.5, height + 0.5], rangemode: "normal" } });
}

function histogram(id, latency, share, color) {
  const values = latency.ms, found = percentile(values, share);
  const marks = [[latency.target_ms, "target", "#b3272d", "solid"],
    [found, `p${share}`, "#1d2430", "dot"]].filter(mark => mark[0] !== null);
  // a few that are far out must not squeeze all others into one bar
  const end = 1.08 * Math.max(1e-3, percentile(values, 99) || 0,
    ...marks.filter(mark => mark[1] !== "target" || mark[0] < 5 * (found || 1)).map(mark => mark[0]));
  const far = values.filter(value => value > end).length;
  const beyond = latency.target_ms !== null && latency.target_ms > end;
  const note = [`latest ${values.length} answers, ms`];
  if (far) note.push(`${far} beyond the right edge`);
  if (beyond) note.push(`target ${rounded(latency.target_ms)} ms is beyond it`);
  element(`${id}-note`).textContent = note.join("; ");
  const shown = marks.filter(mark => mark[0] <= end);
  draw(id, [{ type: "histogram", x: values, marker: { color }, showlegend: false,
    xbins: { start: 0, end, size: end / 40 }, hovertemplate: "%{x} ms: %{y}<extra></extra>" }], {
    shapes: shown.map(mark => ({ type: "line", x0: mark[0], x1: mark[0], y0: 0, y1: 1,
      yref: "paper", line: { color: mark[2], dash: mark[3], width: 1.5 } })),
    annotations: shown.map((mark, place) => ({ x: mark[0], y: 1 - 0.12 * place, yref: "paper",
      text: `${mark[1]} ${rounded(mark[0])}`, showarrow: false, font: { color: mark[2] }, bgcolor: "rgba(255, 255, 255, 0.85)",
      xanchor: mark[0] > 0.7 * end ? "right" : "left", xshift: mark[0] > 0.7 * end ? -4 : 4 })),
    showlegend: false, xaxis: { range: [0, end], title: { text: "ms" } },
    yaxis: { title: { text: "answers" } } });
}

function tile(text, label, mood = "") {
  const box = document.createElement("div"), value = document.createElement("b");
  const under = document.createElement("span");
  box.className = `tile ${mood}`;
  value.textContent = text;
  under.textContent = label;
  box.append(value, under);
  return box;
}

function latencyTile(name, latency, share) {
  const found = percentile(latency.ms, share), target = latency.target_ms;
  const mood = found === null || target === null ? "" : found > target ? "bad" : "good";
  const goal = target === null ? "no target" : `target ${rounded(target)}`;
  return tile(found === null ? "–" : `${rounded(found)} ms`, `${name} p${share}, ${goal}`, mood);
}

function tiles(answer) {
  const now = samples[samples.length - 1];
  const used = now.kv_capacity ? `${Math.round(100 * now.kv_used / now.kv_capacity)} %` : "–";
  element("tiles").replaceChildren(
    tile(rounded(now.running), `running, of ${answer.seats} seats`),
    tile(rounded(now.waiting), `waiting, ${rounded(now.waiting_tokens)} tokens`),
    tile(used, `KV, of ${rounded(now.kv_capacity)} tokens`),
    tile(rounded(now.decode_per_s), "output tokens/s"),
    latencyTile("TTFT", answer.latencies.ttft, answer.percentile),
    latencyTile("TPOT", answer.latencies.tpot, answer.percentile),
    tile(rounded(now.preemptions_total), "preemptions"));
}

function plan(rows) {
  const made = rows.map(row => {
    const line = document.createElement("tr");
    const both = typeof row.planned === "number" && typeof row.measured === "number";
    const off = both && row.planned ? 100 * (row.measured / row.planned - 1) : null;
    const sign = off !== null && off > 0 ? "+" : "";
    const cells = [`${row.name}, ${row.unit}`, rounded(row.planned), rounded(row.measured),
      off === null ? "–" : `${sign}${rounded(off)} %`];
    for (const text of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      line.append(cell);
    }
    return line;
  });
  element("plan").tBodies[0].replaceChildren(...made);
}

function show(answer) {
  samples.push(...answer.samples);
  samples.splice(0, Math.max(0, samples.length - KEEP));
  if (!samples.length) return;
  last = samples[samples.length - 1].at;
  element("title").textContent = `${answer.name}: ${answer.model}`;
  document.title = `${answer.name} – servekit`;
  element("status").textContent = `${answer.state}, ${new Date(last * 1000).toLocaleTimeString("en-GB")}`;
  tiles(answer);
  seats(answer.seats);
  const dated = { xaxis: { type: "date" } };
  draw("requests", [line("running", column("running"), "#2f8f5b"),
    line("waiting", column("waiting"), "#7a4fa3", { fill: "tozeroy" })], dated);
  const free = samples.map(sample => (sample.kv_free === null ? null
    : (sample.kv_free - (sample.kv_cached || 0)) / 1000));
  draw("kv", [area("used", thousands("kv_used"), "#3465c9"),
    area("cached", thousands("kv_cached"), "#9db8e8"), area("free", free, "#eceff3")], dated);
  draw("tokens", [area("answers", column("decode_per_s"), "#63b983"),
    area("prompts", column("prefill_per_s"), "#3465c9")], dated);
  histogram("ttft", answer.latencies.ttft, answer.percentile, "#3465c9");
  histogram("tpot", answer.latencies.tpot, answer.percentile, "#63b983");
  plan(answer.plan);
  document.body.dataset.state = "live";
}

function lost(state, text) {
  document.body.dataset.state = state;
  element("status").textContent = text;
}

async function look() {
  if (busy) return;
  busy = true;
  try {
    const key = sessionStorage.getItem("servekit-key");
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const answer = await fetch(`dashboard/data?since=${last}`, { headers, cache: "no-store" });
    const refused = answer.status === 401 || answer.status === 403;
    element("key-form").hidden = !refused;
    if (refused) lost("refused", key ? "this key has no access to admin" : "a key is needed");
    else if (!answer.ok) lost("lost", `the server answered ${answer.status}`);
    else show(await answer.json());
  } catch (problem) {
    lost("lost", `no answer from the server: ${problem.message}`);
  } finally {
    busy = false;
  }
}

element("key-form").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("servekit-key", element("key").value.trim());
  element("key").value = "";
  look();
});
look();
setInterval(look, EVERY_MS);
