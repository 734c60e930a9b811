// Plots and the rest of the page: hover and click move the cursor, a lasso lights tokens, a zoom leaves Follow.
(function (S) {
  "use strict";
  // a token under the mouse: its line in the stack, its column in the words, its point in the projection
  const hint = (at) => {
    S.moveLine(at === null ? S.cursor() : at);
    document.querySelectorAll("#words .hint").forEach((one) => one.classList.remove("hint"));
    if (at !== null) document.querySelectorAll(`#words [data-at="${at}"]`).forEach((one) => one.classList.add("hint"));
    const plot = S.look.tab === "projection" && S.look.view === "full" && S.plot("graph-tab");
    if (!plot || !plot.data || !window.Plotly.Fx) return;
    const curve = plot.data.findIndex((trace) => trace.customdata);
    const known = curve < 0 || at === null ? -1 : Array.from(plot._fullData[curve].customdata).indexOf(at);
    if (known >= 0) window.Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: known }]);
    else window.Plotly.Fx.unhover(plot);
  };
  document.addEventListener("mouseover", (event) => {
    const token = event.target.closest && event.target.closest("#text .token");
    if (token) hint(Number(token.dataset.at));
  });
  document.addEventListener("mouseout", (event) => { if (event.target.closest && event.target.closest("#text .token")) hint(null); });
  S.bind = (id) => {
    const plot = S.plot(id);
    if (!plot || plot.dataset.bound || !plot.on) return;
    plot.dataset.bound = "yes";
    const token = (event) => {
      const point = event.points && event.points[0];
      if (!point) return null;
      if (id === "graph-states") return Math.round(point.x);
      if (S.look.tab === "interventions") return point.data.type === "scatter" ? Math.round(point.x) : null;
      const known = point.customdata;
      return S.look.tab === "projection" && known !== undefined ? Number(Array.isArray(known) ? known[0] : known) : null;
    };
    plot.on("plotly_click", (event) => { const at = token(event); if (at !== null) S.goTo(at); });
    plot.on("plotly_hover", (event) => {
      const at = token(event), here = at === null ? null : document.querySelector(`#text .token[data-at="${at}"]`);
      document.querySelectorAll("#text .lit-one").forEach((one) => one.classList.remove("lit-one"));
      if (here) here.classList.add("lit-one");
      const found = at === null ? null : S.state.tokens[at - S.state.first];
      if (found) S.$("readout").textContent = S.words(found);
    });
    plot.on("plotly_unhover", () => S.drawCursor());
    plot.on("plotly_selected", (event) => S.light(event ? event.points.map((p) => Number(Array.isArray(p.customdata) ? p.customdata[0] : p.customdata)) : []));
    plot.on("plotly_deselect", () => S.light([]));
    if (id !== "graph-states") return;
    plot.on("plotly_relayout", (event) => {
      const low = event["xaxis.range[0]"], high = event["xaxis.range[1]"];
      if (low !== undefined && high !== undefined) {
        const start = Math.max(0, Math.ceil(low)), stop = Math.min(S.answer.total, Math.floor(high) + 1);
        if (stop > start) S.set({ start, stop });
      } else if (event["xaxis.autorange"]) S.follow();
    });
  };
})(window.sotscope);
