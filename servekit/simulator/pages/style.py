"""The frame of the HTML page: its policy, its looks, and the few lines that draw the figures."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #fff;
  max-width: 1280px; margin: 0 auto; padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 8px; border-bottom: 1px solid #dfe4ea; }
h3 { font-size: 15px; margin: 18px 0 0; }
p { margin: 6px 0; max-width: 900px; }
small { color: #667080; font-weight: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; white-space: nowrap; }
th { color: #667080; font-weight: normal; border-bottom: 1px solid #dfe4ea; }
th:first-child, td:first-child { text-align: left; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px; }
.figure { min-height: 120px; }
.green { color: #1c7a50; font-weight: 600; }
.yellow { color: #9a6a00; font-weight: 600; }
.red { color: #b3272d; font-weight: 600; }
</style>
</head>
<body>
{{body}}
<noscript><p>The figures need scripts; all are inside this file.</p></noscript>
<script>{{plotly}}</script>
<script type="application/json" id="figures">{{figures}}</script>
<script>
const base = { font: { family: "system-ui, sans-serif", size: 12, color: "#1d2430" },
  margin: { l: 64, r: 16, t: 40, b: 44 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
  hovermode: "closest", legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } };
const axis = { gridcolor: "#e8ecf1", zerolinecolor: "#cfd6df" };
function text(hover, states) {
  return hover.requests.map((row, seat) => row.map((request, step) => {
    const tokens = hover.tokens[seat][step];
    const where = `step ${hover.first_step + step} (${hover.ms[step]} ms): `;
    if (request < 0) return where + "empty";
    const count = tokens ? `, ${tokens} token${tokens === 1 ? "" : "s"}` : "";
    return where + `request ${request}, ${hover.names[states[seat][step]]}${count}`;
  }));
}
JSON.parse(document.getElementById("figures").textContent).forEach((figure, place) => {
  if (figure.hover) figure.data[0].text = text(figure.hover, figure.data[0].z);
  const layout = { ...base, ...figure.layout };
  layout.legend = { ...base.legend, ...figure.layout.legend };
  for (const name of new Set([...Object.keys(layout).filter(key => /^[xy]axis/.test(key)),
      "xaxis", "yaxis"])) layout[name] = { ...axis, ...layout[name] };
  Plotly.newPlot(`figure-${place}`, figure.data, layout,
    { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
});
</script>
</body>
</html>
"""
