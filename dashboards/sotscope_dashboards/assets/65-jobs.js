// t-SNE and UMAP: asked for, waited for between two looks, drawn in place of the PCA.
(function (S) {
  "use strict";
  const METHODS = { tsne: "t-SNE", umap: "UMAP" };
  S.lay = async (what) => {
    const found = S.job = await S.tryPost("job", { tab: S.tab, look: S.asked(), ...what });
    const note = S.$("job-note");
    if (!note) return;
    const name = METHODS[found.method] || "";
    note.textContent = found.error ? found.error : found.state === "working" ? `${name} of ${found.rows} tokens: ${found.seconds.toFixed(0)} s …`
      : found.state === "done" ? [`${name}, layer ${found.layer}`, ...found.notes].join("; ") : "";
    S.$("job-cancel").hidden = found.state !== "working";
    S.$("job-clear").hidden = found.state !== "done";
    if (found.state === "done" && S.look.tab === "projection") drawJob(found, name);
  };
  // asked for between two looks: one request at a time
  S.watchJob = () => (S.job && S.job.state === "working" ? S.lay({}) : null);
  // in place of the PCA figure, with its colours
  const drawJob = (found, name) => {
    const before = S.figures["graph-tab"] || { layout: {}, data: [] }, marker = (before.data[0] || {}).marker || {};
    const layout = JSON.parse(JSON.stringify({ ...before.layout, annotations: [], shapes: [], height: 420, uirevision: `${name}/${found.layer}/${found.at.length}` }));
    layout.margin = { ...layout.margin, t: 12 };
    for (const axis of ["xaxis", "yaxis"]) {
      delete layout[axis].range;
      Object.assign(layout[axis], { autorange: true, title: { text: `${name} ${axis[0] === "x" ? 1 : 2}` } });
    }
    const label = (at) => { const t = S.state.tokens[at - S.state.first]; return t ? S.visible(t.labels).replaceAll("&", "&amp;").replaceAll("<", "&lt;") : ""; };
    const here = found.at.indexOf(S.cursor()), of = (axis) => found.points.map((p) => p[axis]);
    const ring = (before.data || []).filter((trace) => trace.name === "cursor" && here >= 0)
      .map((trace) => ({ ...trace, x: [of(0)[here]], y: [of(1)[here]] }));
    window.dash_clientside.set_props("graph-tab", { style: { height: 420 }, figure: { layout, data: [{ type: "scatter", mode: "markers", name: "rows",
      x: of(0), y: of(1), customdata: found.at, text: found.at.map(label), showlegend: false,
      marker: { color: found.at, colorscale: marker.colorscale || "Cividis", size: 6, colorbar: { title: { text: "token" }, thickness: 10, outlinewidth: 0 } },
      hovertemplate: "token %{customdata} %{text}<extra></extra>" }, ...ring] } });
  };
  S.redrawJob = () => drawJob(S.job, METHODS[S.job.method]);
})(window.sotscope);
