// Panels: figures go to dcc.Graph, grids to AG Grid, lists are drawn here.
(function (S) {
  "use strict";
  const set = (id, props) => window.dash_clientside.set_props(id, props);
  S.figures = {};

  S.drawPanels = (panels) => {
    for (const [name, found] of Object.entries(panels || {})) {
      S.have[name] = found.key;
      if (found.kind === "list") S[`draw_${name}`](found.draw);
      else if (found.kind === "grid") drawGrid(name, found.draw);
      else drawFigure(name, found.draw);
    }
  };
  const drawFigure = (name, figure) => {
    const id = name === "states" ? "graph-states" : "graph-tab";
    S.figures[id] = figure;
    if (name === "interventions") S.drawInterventions(figure);
    if (name === "projection" && S.job && S.job.state === "done") { S.redrawJob(); return; }
    if (name === "states" && figure.layout.shapes) {
      const at = S.cursor();
      Object.assign(figure.layout.shapes[0], { x0: at, x1: at });
    }
    set(id, { figure, style: { height: figure.layout.height || 400 } });
  };
  const drawGrid = (name, grid) => {
    const note = S.$("tab-note");
    note.textContent = grid.note || "";
    S.$("body-grid").hidden = !grid.columns.length;
    set("grid-tab", { columnDefs: grid.columns, rowData: grid.rows, style: { height: Math.min(380, 60 + 42 * grid.rows.length) } });
  };
  S.plot = (id) => document.querySelector(`#${id} .js-plotly-plot`);
  S.moveLine = (at) => {
    if (S.following && S.look.cursor === null && S.live()) return; // the next picture has it; a relayout a token costs too much
    const plot = S.plot("graph-states");
    if (!plot || !plot.layout || !plot.layout.shapes || !plot.layout.shapes.length || !window.Plotly) return;
    if (plot.layout.shapes[0].x0 !== at) window.Plotly.relayout(plot, { "shapes[0].x0": at, "shapes[0].x1": at });
  };

  // a leading space is part of many tokens: shown, but faintly
  const word = (label) => label.length > 1 && label.startsWith("␣") ? [S.el("span", { class: "dim", text: "␣" }), label.slice(1)] : [label];
  S.draw_candidates = (found) => {
    const list = S.$("candidates"), title = S.$("candidates-card-title");
    title.textContent = found.after ? `Next after “${found.after}”` : "Next token";
    S.$("branch-note").textContent = found.rows.length && S.answer.engine && S.answer.engine.run === S.answer.run ? "click one to branch" : "";
    const most = Math.max(0.01, ...found.rows.map((row) => row.probability));
    list.replaceChildren(...found.rows.map((row) => {
      const bar = S.el("span", { class: "length" });
      bar.style.width = `${(100 * row.probability) / most}%`;
      const button = S.el("button", {
        class: row.chosen ? "candidate chosen" : "candidate", "data-token": row.token, "data-at": found.cursor,
        title: row.chosen ? "chosen here" : "go on from here with this token, as a branch",
        "aria-label": `${row.label}, probability ${row.probability.toFixed(3)}${row.chosen ? ", chosen" : ""}` },
      S.el("span", { class: "rank", text: row.rank }), S.el("span", { class: "word" }, ...word(row.label)),
      S.el("span", { class: "bar-box" }, bar),
      S.el("span", { class: "value", text: row.probability < 0.001 ? "<0.001" : row.probability.toFixed(3) }),
      S.el("span", { class: "tick", text: row.chosen ? "✓" : "" }));
      return S.el("li", {}, button);
    }), ...(found.why ? [S.el("li", { class: "note", text: found.why })] : []));
  };

  S.draw_words = (found) => {
    const table = S.$("words");
    if (found.why) {
      const begin = S.$("start") && !S.answer.run ? [S.el("p", { text: "The model's text appears here, and what each of its layers would say." }),
        S.el("button", { class: "primary begin", text: "▶ Start" })] : [];
      table.replaceChildren(S.el("caption", { class: "empty" }, S.el("p", { text: found.why }), ...begin));
      return;
    }
    const head = S.el("tr", {}, S.el("th", { scope: "col", class: "corner", text: "layer" }),
      ...found.tokens.map((t) => S.el("th", { scope: "col", "data-at": t.at, class: t.at === found.cursor ? "here" : "" }, ...word(t.label))));
    const rows = found.cells.map((cells, i) => S.el("tr", {}, S.el("th", { scope: "row", text: found.layers[i] }),
      ...cells.map(([said, p], j) => {
        const cell = S.el("td", { "data-at": found.tokens[j].at, class: found.tokens[j].at === found.cursor ? "here" : "",
          title: p === null ? said : `layer ${found.layers[i]}, after “${found.tokens[j].label}”: “${said}”, p ${p.toFixed(3)}` }, ...word(said));
        cell.style.setProperty("--strength", (p || 0).toFixed(3));
        return cell;
      })));
    table.replaceChildren(S.el("caption", { class: "note", text: "Columns: tokens; rows: layers, the last on top. Each cell: the word that layer would say next; the deeper its colour, the surer." }),
      S.el("thead", {}, head), S.el("tbody", {}, ...rows));
  };
})(window.sotscope);
